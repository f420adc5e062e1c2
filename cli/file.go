package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"basegate/batch"
	"basegate/gateway/config"
	"basegate/identity"
)

func newFile() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "file",
		Short: "List, download and delete the files of batches",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(newFileList(), newFileDownload(), newFileDelete())
	return cmd
}

func newFileList() *cobra.Command {
	return newList("List the files of all accounts, the newest first",
		[]string{"ID", "PURPOSE", "BYTES", "NAME", "KEY", "CREATED", "EXPIRES"}, (*batch.Service).Files,
		func(f *batch.FileDetails, prefixes map[string]string) []string {
			return []string{
				f.ID, string(f.Purpose), fmt.Sprint(f.Bytes), f.Filename, dash(prefixes[f.Key]),
				formatTime(time.Unix(f.CreatedAt, 0)), formatExpiry(f.Expires()),
			}
		})
}

// formatExpiry returns when a file is deleted; "-" while its batch runs.
func formatExpiry(t time.Time) string {
	if t.IsZero() {
		return dash("")
	}
	return formatTime(t)
}

func newFileDownload() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "download ID",
		Short: "Print the content of a file, or write it to a new file",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withBatches(cmd, func(ctx context.Context, _ *config.Config, s *batch.Service, _ *identity.Store) (err error) {
				content, err := s.Content(ctx, args[0])
				if err != nil {
					return fmt.Errorf("download %s: %w", args[0], err)
				}
				defer content.Close()
				out := cmd.OutOrStdout()
				if to != "" {
					file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
					if err != nil {
						return fmt.Errorf("create the file: %w", err)
					}
					defer func() { err = errors.Join(err, file.Close()) }()
					out = file
				}
				if _, err := io.Copy(out, content); err != nil {
					return fmt.Errorf("download %s: %w", args[0], err)
				}
				return nil
			})
		}),
	}
	cmd.Flags().StringVarP(&to, "output", "o", "", "a file that does not exist yet")
	return cmd
}

func newFileDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a file; the running gateway removes its bytes within a minute",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withBatches(cmd, func(ctx context.Context, _ *config.Config, s *batch.Service, _ *identity.Store) error {
				if err := s.Delete(ctx, args[0]); err != nil {
					return fmt.Errorf("delete %s: %w", args[0], err)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is deleted\n", args[0])
				return nil
			})
		}),
	}
}
