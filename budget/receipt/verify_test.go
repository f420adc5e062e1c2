package receipt_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"basegate/budget/receipt"
)

func verify(requestBody, answerBody, text []byte, key string) error {
	r, err := receipt.Parse(text)
	if err != nil {
		return err
	}
	return r.Verify(requestBody, answerBody, key)
}

func TestReceiptVerifiesWithTheFilesAlone(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(300) // the proof spans two levels of tiles
	text, key := f.whole(f.sealPlain()), f.log.VerifierKey()
	for _, k := range []string{key, ""} {
		if err := verify([]byte(request), []byte(answer), text, k); err != nil {
			t.Errorf("with the key %q: %v", k, err)
		}
	}
	comment := append([]byte(": receipt "), text...)
	if err := verify([]byte(request), []byte(answer), comment, key); err != nil {
		t.Errorf("as the comment of a stream: %v", err)
	}
	var anything any
	if err := json.Unmarshal(text, &anything); err != nil {
		t.Fatal(err)
	}
	rewritten, err := json.MarshalIndent(anything, "", "  ") // another order too
	if err != nil {
		t.Fatal(err)
	}
	if err := verify([]byte(request), []byte(answer), rewritten, key); err != nil {
		t.Errorf("rewritten by another program: %v", err)
	}
}

func TestEveryChangedBitIsFound(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(2)
	text, key := f.whole(f.sealPlain()), f.log.VerifierKey()
	for name, changed := range map[string]func(flip func([]byte) []byte) error{
		"receipt": func(flip func([]byte) []byte) error { return verify([]byte(request), []byte(answer), flip(text), key) },
		"receipt without a key": func(flip func([]byte) []byte) error {
			return verify([]byte(request), []byte(answer), flip(text), "")
		},
		"request": func(flip func([]byte) []byte) error { return verify(flip([]byte(request)), []byte(answer), text, key) },
		"answer":  func(flip func([]byte) []byte) error { return verify([]byte(request), flip([]byte(answer)), text, key) },
		"key": func(flip func([]byte) []byte) error {
			return verify([]byte(request), []byte(answer), text, string(flip([]byte(key))))
		},
	} {
		bits := 0
		for i := 0; ; i++ {
			last := false
			err := changed(func(whole []byte) []byte {
				last = i == 8*len(whole)-1
				out := bytes.Clone(whole)
				out[i/8] ^= 1 << (i % 8)
				return out
			})
			if bits++; err == nil {
				t.Errorf("%s: bit %d of byte %d is not checked", name, i%8, i/8)
			}
			if last {
				break
			}
		}
		if bits < 8*len(answer) {
			t.Errorf("%s: tried %d bits only", name, bits)
		}
	}
}

func TestStreamVerifiesAsReceivedAndAsJoinedPayloads(t *testing.T) {
	f := newFixture(t)
	f.start()
	r := record()
	r.Stream = true
	entry := f.seal(r, func(b *receipt.Builder) {
		b.WriteEvents([]byte("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"))
		b.WriteEvents([]byte(": comment\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\r\n\r\n"))
	})
	text, key := f.whole(entry), f.log.VerifierKey()
	onchain, err := json.Marshal(entry.OnchainData())
	if err != nil {
		t.Fatal(err)
	}
	received := ": booting\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n"
	end := ": receipt " + string(text) + "\ndata: [DONE]\n\n"
	event := "data: {\"choices\":[],\"onchain_data\":" + string(onchain) + "}\n\n"
	for name, kept := range map[string]string{
		"as received":            received + end,
		"with onchain_data":      received + event + end,
		"without comments":       received + "data: [DONE]\n\n",
		"with CRLF":              strings.ReplaceAll(received+end, "\n", "\r\n"),
		"joined":                 "{\"choices\":[{\"text\":\"a\"}]}\n{\"choices\":[{\"text\":\"b\"}]}",
		"joined, with a last LF": "{\"choices\":[{\"text\":\"a\"}]}\n{\"choices\":[{\"text\":\"b\"}]}\n",
	} {
		if err := verify([]byte(request), []byte(kept), text, key); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, kept := range map[string]string{
		"an event less":         "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n",
		"an event more":         received + "data: {\"choices\":[]}\n\n" + end,
		"another order":         "data: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n",
		"an event after [DONE]": received + end + "data: {}\n\n",
	} {
		if err := verify([]byte(request), []byte(kept), text, key); !errors.Is(err, receipt.ErrAnswer) {
			t.Errorf("%s: got %v, want ErrAnswer", name, err)
		}
	}
	for name, line := range map[string]string{
		"an unknown field": "text: c\n", "a name of an event": "event: error\n", "a comment with a CR": ": a\rdata: {}\n", "a byte order mark": "\ufeff\n",
	} {
		if err := verify([]byte(request), []byte(line+received+end), text, key); !errors.Is(err, receipt.ErrLine) {
			t.Errorf("%s: got %v, want ErrLine", name, err)
		}
	}
	for name, added := range map[string]string{
		"a text":        `{"choices":[{"text":"c"}],"onchain_data":` + string(onchain) + "}",
		"a member":      `{"choices":[],"usage":{"prompt_tokens":1},"onchain_data":` + string(onchain) + "}",
		"another id":    `{"id":"cmpl-2","choices":[],"onchain_data":` + string(onchain) + "}",
		"an empty name": `{"":[],"choices":[],"onchain_data":` + string(onchain) + "}",
	} {
		if err := verify([]byte(request), []byte(received+"data: "+added+"\n\n"+end), text, key); !errors.Is(err, receipt.ErrAnswer) {
			t.Errorf("%s in the event with onchain_data: got %v, want ErrAnswer", name, err)
		}
	}
	forged := received + strings.Replace(event, "\"infer_tx\":\"", "\"infer_tx\":\"00", 1) + end
	if err := verify([]byte(request), []byte(forged), text, key); !errors.Is(err, receipt.ErrOnchain) {
		t.Errorf("with another onchain_data: got %v, want ErrOnchain", err)
	}
}

func TestPlainAnswerVerifiesWithItsOnchainData(t *testing.T) {
	f := newFixture(t)
	f.start()
	entry := f.sealPlain()
	text := f.whole(entry)
	onchain, err := json.Marshal(entry.OnchainData())
	if err != nil {
		t.Fatal(err)
	}
	embedded := strings.TrimSuffix(answer, "}") + `,"onchain_data":` + string(onchain) + "}"
	if err := verify([]byte(request), []byte(embedded), text, ""); err != nil {
		t.Error(err)
	}
	var data receipt.OnchainData
	if err := json.Unmarshal(onchain, &data); err != nil {
		t.Fatal(err)
	}
	if _, id, _ := strings.Cut(f.log.VerifierKey(), "+"); data.Proposer == "" || !strings.HasPrefix(id, data.Proposer+"+") {
		t.Errorf("proposer: got %q, want the id of the key %s", data.Proposer, f.log.VerifierKey())
	}
	forged := strings.Replace(embedded, data.Proposer, "00000000", 1)
	if err := verify([]byte(request), []byte(forged), text, ""); !errors.Is(err, receipt.ErrOnchain) {
		t.Errorf("with another proposer: got %v, want ErrOnchain", err)
	}
}

// A server that indents its responses has a line break before the last brace, where onchain_data is added.
func TestIndentedAnswerVerifiesWithItsOnchainData(t *testing.T) {
	f := newFixture(t)
	f.start()
	entry := f.seal(record(), func(b *receipt.Builder) { b.Write([]byte("{\n  \"id\": \"cmpl-1\"\n}\n")) })
	onchain, err := json.Marshal(entry.OnchainData())
	if err != nil {
		t.Fatal(err)
	}
	embedded := "{\n  \"id\": \"cmpl-1\"\n,\"onchain_data\":" + string(onchain) + "}\n"
	if err := verify([]byte(request), []byte(embedded), f.whole(entry), ""); err != nil {
		t.Error(err)
	}
}

func TestReasonIsNamedForEachUnverifiableReceipt(t *testing.T) {
	f := newFixture(t)
	f.start()
	text := f.whole(f.sealPlain())
	other := newFixture(t)
	other.start()
	edited := func(edit func(*receipt.Receipt)) []byte {
		r, err := receipt.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		edit(r)
		out, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, c := range []struct {
		name            string
		request, answer string
		text            []byte
		key             string
		want            error
	}{
		{"another request", request + " ", answer, text, "", receipt.ErrRequest},
		{"another answer", request, answer + "\n", text, "", receipt.ErrAnswer},
		{"another log's key", request, answer, text, other.log.VerifierKey(), receipt.ErrOtherLog},
		{"without entry", request, answer, edited(func(r *receipt.Receipt) { r.Entry = nil }), "", receipt.ErrNoEntry},
		{"without nonce", request, answer, edited(func(r *receipt.Receipt) { r.Nonce = nil }), "", receipt.ErrNoEntry},
		{"without proof", request, answer, edited(func(r *receipt.Receipt) { r.LeafIndex, r.Proof, r.Checkpoint = nil, nil, "" }), "", receipt.ErrNoProof},
		{"another model", request, answer, edited(func(r *receipt.Receipt) { r.Entry.Model = "n" }), "", receipt.ErrEntry},
		{"another index", request, answer, edited(func(r *receipt.Receipt) { *r.LeafIndex = 7 }), "", receipt.ErrNotInLog},
	} {
		if err := verify([]byte(c.request), []byte(c.answer), c.text, c.key); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	wrongKey := &receipt.WrongKeyError{}
	foreign := edited(func(r *receipt.Receipt) { r.Log = other.log.VerifierKey() })
	if err := verify([]byte(request), []byte(answer), foreign, other.log.VerifierKey()); !errors.As(err, &wrongKey) {
		t.Errorf("signed by another key: got %v, want a WrongKeyError", err)
	}
}

// An older tree head that has the entry proves it for ever, but only with its own inclusion proof.
func TestProofIsOfOneTreeHead(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(3)
	entry := f.sealPlain()
	older := f.whole(entry)
	f.add(9)
	newer := f.whole(entry)
	parse := func(text []byte) *receipt.Receipt {
		r, err := receipt.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, mixed := range map[string][2]*receipt.Receipt{
		"older proof, newer tree head": {parse(older), parse(newer)},
		"newer proof, older tree head": {parse(newer), parse(older)},
	} {
		if err := mixed[0].Verify([]byte(request), []byte(answer), f.log.VerifierKey()); err != nil {
			t.Errorf("%s, each by itself: %v", name, err)
		}
		mixed[0].Checkpoint = mixed[1].Checkpoint
		if err := mixed[0].Verify([]byte(request), []byte(answer), f.log.VerifierKey()); !errors.Is(err, receipt.ErrNotInLog) {
			t.Errorf("%s: got %v, want ErrNotInLog", name, err)
		}
	}
	before := parse(older)
	before.Checkpoint = parse(f.whole(f.sealPlain())).Checkpoint
	if err := before.Verify([]byte(request), []byte(answer), ""); !errors.Is(err, receipt.ErrNotInLog) {
		t.Errorf("with the latest tree head: got %v, want ErrNotInLog", err)
	}
}

func TestMalformedReceiptsAreRefused(t *testing.T) {
	for _, text := range []string{
		"", "{}", "null", "[]", `"receipt"`, `{"object":"receipt"`, `{"object":"receipt","x":1}`, `{"object":"receipt","object":"receipt"}`,
		`{"object":"receipt","leaf_hash":"AB"}`, `{"object":"receipt","leaf_index":0}`, `{"object":"receipt","checkpoint":"x"}`,
		strings.Repeat(" ", 1<<20) + `{"object":"receipt"}`,
	} {
		if _, err := receipt.Parse([]byte(text)); err == nil {
			t.Errorf("%.60q is accepted", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"object":"receipt","leaf_hash":"` + strings.Repeat("0a", 32) + `","log":"a+00000000+AAAA","entry":{"version":1},"nonce":"` + strings.Repeat("00", 32) + `","leaf_index":0,"inclusion_proof":[],"checkpoint":"a\n1\nAAAA\n\n— a AAAA\n"}`))
	f.Add([]byte(`{"object":"receipt"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := receipt.Parse(text)
		if err != nil {
			return
		}
		if r.Verify([]byte(request), []byte(answer), "") == nil {
			t.Error("a receipt without a log verifies")
		}
		encoded, err := r.Encode()
		if err != nil {
			return // such as an entry with invalid UTF-8
		}
		again, err := receipt.Parse(encoded)
		if err != nil {
			t.Fatalf("what was encoded cannot be parsed: %v", err)
		}
		if second, err := again.Encode(); err != nil || !bytes.Equal(encoded, second) {
			t.Errorf("encoded twice: %s and %s, error %v", encoded, second, err)
		}
	})
}

func FuzzOpenCheckpoint(f *testing.F) {
	f.Add("log\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n— log AAAAAAAA\n", "log+00000000+AQAA")
	f.Fuzz(func(t *testing.T, checkpoint, key string) {
		if head, err := receipt.OpenCheckpoint(checkpoint, key); err == nil {
			t.Errorf("a tree head without a key verifies: %+v", head)
		}
	})
}

func TestEveryChangedBitOfACapturedStreamIsFound(t *testing.T) {
	f := newFixture(t)
	f.start()
	r := record()
	r.Stream = true
	const events = "data: {\"id\":\"cmpl-1\",\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"id\":\"cmpl-1\",\"choices\":[{\"text\":\"b\"}]}\n\n"
	entry := f.seal(r, func(b *receipt.Builder) { b.WriteEvents([]byte(events)) })
	text, key := f.whole(entry), f.log.VerifierKey()
	onchain, err := json.Marshal(entry.OnchainData())
	if err != nil {
		t.Fatal(err)
	}
	captured := []byte(events + string(receipt.OnchainEvent([]byte(`"id":"cmpl-1",`), onchain)) + "data: [DONE]\n\n")
	if err := verify([]byte(request), captured, text, key); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(captured) {
		changed := bytes.Clone(captured)
		changed[i/8] ^= 1 << (i % 8)
		if err := verify([]byte(request), changed, text, key); err == nil {
			t.Errorf("bit %d of byte %d: %q verifies", i%8, i/8, changed[max(0, i/8-12):min(len(changed), i/8+12)])
		}
	}
}
