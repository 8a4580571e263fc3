package gateway

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	gatewayv1 "github.com/coordd/coordd/transport/gateway/coordd/v1"
)

//go:embed openapi.swagger.json
var openAPI []byte

// route is what is found at one path.
type route struct {
	method  string
	query   []string        // the parameters that it knows
	ends    context.Context // requests end with it
	page    bool            // it is no call of coordd.v1
	handler http.Handler
}

// newRoutes returns all routes by their paths: the calls, as the OpenAPI file has
// them, and the pages beside them.
func (s *Server) newRoutes() (map[string]route, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, codec{}),
		runtime.WithErrorHandler(handleError),
		runtime.WithStreamErrorHandler(handleStreamError),
		runtime.WithOutgoingHeaderMatcher(nothing),
		runtime.WithOutgoingTrailerMatcher(nothing),
		runtime.WithDisableChunkedEncoding(), // net/http does it by itself
	)
	if err := gatewayv1.RegisterCoorddHandlerClient(context.Background(), mux, newClient(s.conn, s.cfg)); err != nil {
		return nil, err
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Produces   []string
			Parameters []struct{ Name, In string }
		}
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		return nil, fmt.Errorf("the OpenAPI file: %w", err)
	}
	page := func(h http.Handler) route {
		return route{method: http.MethodGet, ends: s.calls, page: true, handler: h}
	}
	routes := map[string]route{
		"/healthz":         page(http.HandlerFunc(s.health)),
		"/readyz":          page(http.HandlerFunc(s.ready)),
		"/v1/openapi.json": page(http.HandlerFunc(describe)),
	}
	if s.cfg.Metrics != nil {
		routes["/metrics"] = page(s.cfg.Metrics)
	}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			r := route{method: strings.ToUpper(method), ends: s.calls, handler: mux}
			if slices.Contains(op.Produces, typeLines) {
				r.ends = s.streams
			}
			for _, p := range op.Parameters {
				if p.In == "query" {
					r.query = append(r.query, p.Name)
				}
			}
			routes[path] = r
		}
	}
	return routes, nil
}

// nothing of gRPC's own headers goes out.
func nothing(string) (string, bool) { return "", false }

func describe(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, openAPI) }

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, []byte(`{"healthy":true}`))
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTime)
	defer cancel()
	if err := s.cfg.Ready(ctx); err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	writeJSON(w, http.StatusOK, []byte(`{"ready":true}`))
}
