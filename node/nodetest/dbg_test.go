package nodetest
import ("testing";"fmt"; "github.com/coordd/coordd/internal/rules")
func TestDbg(t *testing.T){
 for seed:=range uint64(3) {
 h, sch := staleRound.history(t, seed, rules.Without(rules.RoundFreshness))
 for _, e := range h.Events { fmt.Println(e) }
 for _, e := range h.Beliefs { fmt.Println(e) }
 fmt.Println(sch)
 }
}
