package receipt

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

func TestTreeIsThatOfPackageTlog(t *testing.T) {
	type place struct{ level, number int64 }
	stored := map[place][]byte{}
	var leaves []byte
	load := func(id tlog.Tile) ([]byte, error) {
		data := stored[place{int64(id.L), id.N}]
		if id.L == 0 && id.W < tileWidth {
			data = leaves[min(id.N*tileWidth*tlog.HashSize, int64(len(leaves))):]
		}
		if len(data) < id.W*tlog.HashSize {
			return nil, errMissingTile
		}
		return data[:id.W*tlog.HashSize], nil
	}
	ours, err := newTree(0, load)
	if err != nil {
		t.Fatal(err)
	}
	var reference []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		hashes := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			hashes[i] = reference[index]
		}
		return hashes, nil
	})
	const last = tileWidth*tileWidth + 3*tileWidth + 5
	for n := range int64(last) {
		leaf := tlog.RecordHash(binary.BigEndian.AppendUint64(nil, uint64(n)))
		added, err := tlog.StoredHashesForRecordHash(n, leaf, reader)
		if err != nil {
			t.Fatal(err)
		}
		reference = append(reference, added...)
		leaves = append(leaves, leaf[:]...)
		ours.append(leaf)
		if n%977 != 0 && n < last-2 && n%tileWidth != tileWidth-1 {
			continue
		}
		err = ours.save(func(id tlog.Tile, hashes []byte) error {
			stored[place{int64(id.L), id.N}] = hashes
			return nil
		})
		if ours = ours.next(); err == nil && n%2 == 0 { // as after a restart
			ours, err = newTree(n+1, load)
		}
		if err != nil {
			t.Fatal(err)
		}
		want, err := tlog.TreeHash(n+1, reader)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ours.root(n + 1); err != nil || got != want {
			t.Fatalf("root of %d entries: %v, error %v, want %v", n+1, got, err, want)
		}
		for _, entry := range []int64{0, n / 2, n} {
			proof, err := tlog.ProveRecord(n+1, entry, ours)
			if err == nil {
				leaf := tlog.RecordHash(binary.BigEndian.AppendUint64(nil, uint64(entry)))
				err = tlog.CheckRecord(proof, n+1, want, entry, leaf)
			}
			if err != nil {
				t.Fatalf("proof of entry %d of %d: %v", entry, n+1, err)
			}
		}
	}
	if _, err := newTree(last+tileWidth, load); err == nil {
		t.Error("a tree with missing tiles is loaded")
	}
}

func TestCIDIsThatOfIPFS(t *testing.T) {
	digest := sha256.Sum256([]byte("hello world")) // printf 'hello world' | ipfs add --raw-leaves --cid-version=1
	const want = "ipfs://bafkreifzjut3te2nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e"
	if got := formatCID(digest[:]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHashHasOneForm(t *testing.T) {
	const text = "00ff000000000000000000000000000000000000000000000000000000000abc"
	h, err := ParseHash(text)
	if err != nil || h.String() != text {
		t.Errorf("got %v, error %v", h, err)
	}
	if prefixed, err := ParseHash("0x" + text); err != nil || prefixed != h {
		t.Errorf("with 0x: got %v, error %v", prefixed, err)
	}
	for _, bad := range []string{"", "00", text + "00", text[:63] + "C", text[:63] + "g"} {
		if _, err := ParseHash(bad); err == nil {
			t.Errorf("%q is a hash", bad)
		}
	}
}
