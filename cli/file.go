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
)

func newFile() *cobra.Command {
	return newGroup("file", "List, download and delete the files of batches", newFileList(), newFileDownload(), newFileDelete())
}

func newFileList() *cobra.Command {
	return newBatchesList("List the files of all accounts, the newest first",
		[]string{"ID", "PURPOSE", "BYTES", "NAME", "KEY", "CREATED", "EXPIRES"}, (*batch.Service).FilesOf,
		func(f *batch.File, prefixes map[string]string) []string {
			return []string{
				f.ID, string(f.Purpose), fmt.Sprint(f.Bytes), f.Name, dash(prefixes[f.Key]),
				formatTime(time.Unix(f.CreatedAt, 0)), formatExpiry(f),
			}
		})
}

// formatExpiry returns when a file is deleted; "-" while its batch runs.
func formatExpiry(f *batch.File) string {
	if f.Growing() {
		return dash("")
	}
	return formatTime(time.Unix(f.ExpiresAt, 0))
}

func newFileDownload() *cobra.Command {
	var to string
	cmd := newBatchesCommand("download ID", "Print the content of a file, or write it to a new file",
		func(ctx context.Context, cmd *cobra.Command, s *batch.Service, args []string) (err error) {
			content, err := s.Content(ctx, args[0])
			if err != nil {
				return fmt.Errorf("download %s: %w", args[0], err)
			}
			defer content.Close()
			out := cmd.OutOrStdout()
			if to != "" {
				file, createErr := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if createErr != nil {
					return fmt.Errorf("create the file: %w", createErr)
				}
				defer func() { err = errors.Join(err, file.Close()) }()
				out = file
			}
			if _, err := io.Copy(out, content); err != nil {
				return fmt.Errorf("download %s: %w", args[0], err)
			}
			return nil
		})
	cmd.Flags().StringVarP(&to, "output", "o", "", "a file that does not exist yet")
	return cmd
}

func newFileDelete() *cobra.Command {
	return newBatchesCommand("delete ID", "Delete a file; the running gateway removes its bytes within a minute",
		func(ctx context.Context, cmd *cobra.Command, s *batch.Service, args []string) error {
			if err := s.DeleteOf(ctx, "", args[0]); err != nil {
				return fmt.Errorf("delete %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is deleted\n", args[0])
			return nil
		})
}
