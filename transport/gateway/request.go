package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coordd/coordd/leases"
	"github.com/coordd/coordd/transport"
)

// serve checks a request as far as it can be checked without knowing the call,
// and passes it on.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	control := http.NewResponseController(w)
	control.SetWriteDeadline(time.Now().Add(writeTime)) // that of the request before may have passed
	control.SetReadDeadline(time.Now().Add(readTime))
	if err := s.enter(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer s.running.Done()
	route, body, status, err := s.admit(w, r)
	if err != nil {
		refuse(w, status, err)
		return
	}
	control.SetReadDeadline(time.Time{}) // what is read from here on is whether the client hangs up
	stop := context.AfterFunc(route.ends, func() { cancel(transport.ErrClosing) })
	defer stop()
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if !route.page {
		r.Header = http.Header{} // grpc-gateway would take timeouts, methods and metadata from there
	}
	route.handler.ServeHTTP(&response{w, control, cancel}, r)
}

// admit returns what r is for, and its body; or the HTTP status and the error
// to refuse it with.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) (rt route, body []byte, status int, err error) {
	if s.local && !namesLoopback(r.Host) {
		return rt, nil, http.StatusForbidden, invalid("host", r.Host, "localhost or a loopback address, as the gateway listens on one")
	}
	rt, ok := s.routes[r.URL.Path]
	if !ok {
		return rt, nil, http.StatusNotFound, invalid("path", r.URL.Path, "one of those in /v1/openapi.json")
	}
	if r.Method != rt.method && !(rt.page && r.Method == http.MethodHead) {
		w.Header().Set("Allow", rt.method)
		return rt, nil, http.StatusMethodNotAllowed, invalid("method", r.Method, rt.method)
	}
	if err := checkQuery(r.URL.RawQuery, rt); err != nil {
		return rt, nil, http.StatusBadRequest, err
	}
	if rt.method == http.MethodGet {
		if r.ContentLength != 0 {
			return rt, nil, http.StatusBadRequest, invalid("body", "one", "none with GET")
		}
		return rt, nil, 0, nil
	}
	body, status, err = readBody(w, r)
	return rt, body, status, err
}

// checkQuery refuses what grpc-gateway would ignore, or what could not be sent on.
func checkQuery(query string, rt route) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return invalid("query", query, fmt.Sprintf("name=value pairs, percent-encoded (%v)", err))
	}
	for name, all := range values {
		switch {
		case !slices.Contains(rt.query, name):
			bounds := "one of " + strings.Join(rt.query, ", ")
			if len(rt.query) == 0 {
				bounds = "none here"
			}
			return invalid("query parameter", name, bounds)
		case len(all) != 1:
			return invalid(name, strings.Join(all, ", "), "one value")
		case !utf8.ValidString(all[0]):
			return invalid(name, all[0], "UTF-8, percent-encoded")
		}
	}
	return nil
}

// readBody insists on JSON by name: that is what no page of another web site can
// make a browser send without asking first, and nobody here says yes.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, status int, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != typeJSON {
		return nil, http.StatusUnsupportedMediaType, invalid("content-type", r.Header.Get("Content-Type"), typeJSON)
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return nil, http.StatusRequestEntityTooLarge, invalid("body", "a longer one", fmt.Sprintf("at most %d bytes", maxBody))
	case err != nil:
		return nil, http.StatusBadRequest, invalid("body", "cut off", fmt.Sprintf("all of it within %v (%v)", readTime, err))
	}
	return body, 0, nil
}

// maxValue is how much of what is refused an error repeats, in bytes: what is
// wanted comes after it.
const maxValue = 100

func invalid(field, value, bounds string) error {
	if len(value) > maxValue {
		value = strings.ToValidUTF8(value[:maxValue], "") + "…"
	}
	return &leases.InvalidError{Field: field, Value: value, Bounds: bounds}
}
