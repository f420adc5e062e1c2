package validate_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	apierr "basegate/errors"
	"basegate/validate"
)

// longestRandomValue leaves out the values that are long because of a limit, which would take most of the time.
const longestRandomValue = 2 << 10

// randomBody returns a body with up to eight fields of the table in random order, some names with an escape, and the first
// of its fields whose value is invalid; "" if all are valid.
func randomBody(r *rand.Rand) (body, firstInvalid string) {
	var all []string
	chosen := r.Perm(len(fieldTable))[:r.IntN(8)]
	for i, row := range fieldTable {
		if (row.field == "model" || row.field == "prompt") && !slices.Contains(chosen, i) {
			chosen = slices.Insert(chosen, r.IntN(len(chosen)+1), i)
		}
	}
	for _, i := range chosen {
		row := fieldTable[i]
		values, valid := row.accepted, true
		if r.IntN(12) == 0 {
			values, valid = row.refused, false
		}
		value := values[r.IntN(len(values))]
		if len(value) > longestRandomValue || contradicts(row.field, value) {
			continue
		}
		if !valid && firstInvalid == "" {
			firstInvalid = row.field
		}
		name := row.field
		if at := r.IntN(3 * len(name)); at < len(name) {
			name = fmt.Sprintf(`%s\u%04x%s`, name[:at], name[at], name[at+1:])
		}
		all = append(all, fmt.Sprintf(`%s"%s"%s:%s%s`, space(r), name, space(r), space(r), value))
	}
	return "{" + strings.Join(all, ",") + "}", firstInvalid
}

// contradicts reports whether a refused value of the table is valid by itself, and refused beside the default of another
// field: contradictions are reported after all other errors.
func contradicts(field, value string) bool { return field == "min_tokens" && value == "17" }

func space(r *rand.Rand) string { return strings.Repeat(" ", r.IntN(2)) }

// For random combinations of the table's fields, the first invalid field of the body is refused by name; a body of valid
// fields is refused for a contradiction of two of them, or sent with every byte of the members that no edit concerns.
func TestRandomBodiesAreJudgedByTheTable(t *testing.T) {
	var refused, contradictory, sent int
	r := rand.New(rand.NewPCG(7, 16))
	for range 6_000 {
		body, firstInvalid := randomBody(r)
		request, err := validate.Completion([]byte(body), defaultLimits)
		if firstInvalid != "" {
			refused++
			if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != firstInvalid {
				t.Fatalf("%s: got %s, want %s refused", body, result(err), firstInvalid)
			}
			continue
		}
		want, violation := oracle([]byte(body))
		if violation != nil {
			t.Fatalf("%s: the table says that it is valid, the oracle says %v", body, violation)
		}
		if err != nil {
			contradictory++
			if !outsideOracle(apierr.From(err), want) {
				t.Fatalf("%s: got %s, want it accepted", body, result(err))
			}
			continue
		}
		sent++
		if diff := cmp.Diff(want, valuesOf(request), ofRequest); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", body, diff)
		}
		checkSent(t, body, request, validate.Edits{Model: checkpoint, Guided: r.IntN(2) == 0})
	}
	if min(refused, contradictory, sent) < 300 {
		t.Errorf("%d bodies were refused, %d contradictory and %d sent, want at least 300 of each", refused, contradictory, sent)
	}
}

// checkSent checks that a backend receives the members of the body with no other changes than those of the contract.
func checkSent(t *testing.T, body string, request *validate.Request, e validate.Edits) {
	t.Helper()
	before, err := parseMembers([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseMembers(request.Upstream(e).Append(nil))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for i, m := range after {
		if m.decodedName() == "model" && m.text() == e.Model {
			after[i].value = anyCheckpoint
		}
	}
	if diff := cmp.Diff(wantMembers(before, request, e), after, cmp.AllowUnexported(rawMember{})); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", body, diff)
	}
}
