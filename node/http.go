package node

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
	coorddv1 "github.com/coordd/coordd/transport/api/coordd/v1"
	"github.com/coordd/coordd/transport/gateway"
)

// listenHTTP opens the port for HTTP/JSON, where there is to be one. What comes
// over it is answered by the leader, whichever node it comes to.
func (n *Node) listenHTTP(ctx context.Context) error {
	if n.cfg.HTTP == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", n.cfg.HTTP)
	if err != nil {
		return fmt.Errorf("listen for HTTP on %s: %w", n.cfg.HTTP, err)
	}
	n.httpAddress = listener.Addr().String()
	n.service = transport.NewService(transport.ServiceConfig{Backend: n, Status: n.statusAnywhere, Log: n.log})
	config := gateway.Config{Listener: listener, Cluster: n.service, Ready: n.ready, Log: n.log}
	if g, ok := n.cfg.Metrics.(prometheus.Gatherer); ok {
		config.Metrics = promhttp.HandlerFor(g, promhttp.HandlerOpts{})
	}
	server, err := gateway.New(config)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	n.http = server
	server.Start()
	return nil
}

// statusAnywhere is answerStatus that passes a question about a lease on to the
// leader.
func (n *Node) statusAnywhere(ctx context.Context, r *coorddv1.StatusRequest) (*coorddv1.StatusResponse, error) {
	resp, err := n.answerStatus(ctx, r)
	elsewhere, ok := err.(*leases.NotLeaderError)
	if !ok || elsewhere.Leader == "" {
		return resp, err
	}
	conn, err := n.forwardTo(elsewhere.Leader)
	if err != nil {
		return nil, err
	}
	if resp, err = conn.Status(ctx, r.GetName()); err == nil && resp.GetLease() == nil {
		err = elsewhere // it knows no more than this node does
	}
	return resp, err
}

// HTTPAddress is where the node answers HTTP, once it has been started; empty:
// nowhere.
func (n *Node) HTTPAddress() string {
	return n.httpAddress
}

// ready returns nil if a call to this node would be answered now.
func (n *Node) ready(context.Context) error {
	if n.leads() != nil {
		return nil
	}
	err := n.notServing()
	if elsewhere, ok := err.(*leases.NotLeaderError); ok && elsewhere.Leader != "" {
		return nil // it passes calls on
	}
	return err
}
