package k8slock

import (
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/coordd/coordd/leases"
)

// resource is what client-go's errors call a lease.
var resource = schema.GroupResource{Group: "coordd", Resource: "leases"}

// attributes are kept with a lease, as JSON. Those of a lease that was not taken
// by a Lock are others.
type attributes struct {
	LeaderTransitions *int `json:"leaderTransitions"`
}

func attributesOf(r resourcelock.LeaderElectionRecord) []byte {
	b, _ := json.Marshal(attributes{&r.LeaderTransitions}) // a number can be marshalled
	return b
}

// observe returns what others are to believe about the leader: whoever holds the
// lease leads, and if nobody does it can be taken at once. A name that was never
// held is not found, as a missing object.
func (l *Lock) observe(s leases.State) (resourcelock.LeaderElectionRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.Held {
		if s.Last.Token == 0 && l.transitions == 0 {
			return resourcelock.LeaderElectionRecord{}, apierrors.NewNotFound(resource, l.name)
		}
		return resourcelock.LeaderElectionRecord{LeaderTransitions: l.transitions}, nil
	}
	r := resourcelock.LeaderElectionRecord{
		HolderIdentity:       s.Owner.String(),
		LeaseDurationSeconds: int((s.TTL + time.Second - 1) / time.Second),
		AcquireTime:          metav1.NewTime(s.AcquiredAt),
		RenewTime:            metav1.NewTime(time.Now().Add(min(0, s.AtMost-leases.Stretch(s.TTL)))),
	}
	var a attributes
	if json.Unmarshal(s.Attributes, &a) == nil && a.LeaderTransitions != nil {
		r.HolderIdentity = s.Owner.Label
		l.transitions = max(l.transitions, *a.LeaderTransitions)
	}
	r.LeaderTransitions = l.transitions
	return r, nil
}

// encode returns the record, and the bytes by which leaderelection sees whether
// it has changed.
func encode(r resourcelock.LeaderElectionRecord) (*resourcelock.LeaderElectionRecord, []byte, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, nil, err
	}
	return &r, raw, nil
}
