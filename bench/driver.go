package main

// Driver is the role that puts loads on servers in other processes.
type Driver struct{ Base }

// Load puts a load on the servers at its addresses.
func (d *Driver) Load(l Load, _ *None) error {
	var t target
	var err error
	switch l.Kind {
	case "ping":
		t = &pings{addr: l.Addrs[0]}
	case "stream", "coalesced":
		t, err = openStreams(l)
	default:
		t, err = openLeases(l, nil)
	}
	return d.begin(l.Workers, t, err)
}
