package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"

	"github.com/coordd/coordd/clock"
)

// DefaultTimeout bounds a call. It is well below the 2.5 s between two renewals of
// an authority lease of 10 s.
const DefaultTimeout = 1500 * time.Millisecond

// connections is how many idle ones are kept: a node that serves from the registers
// has one write in flight for each shard.
const connections = 64

// Config says where the table is. Credentials come from the SDK's ordinary chain:
// environment, profile, web identity, container, instance.
type Config struct {
	Table    string
	Endpoint string        // URL of another DynamoDB than the region's; empty: that one
	Region   string        // empty: from AWS_REGION or the profile
	Profile  string        // of the shared configuration; empty: AWS_PROFILE, or the default one
	Timeout  time.Duration // of a call, with its retries; 0: DefaultTimeout
	Log      *slog.Logger  // nil: silent
	Clock    clock.Clock   // nil: the system's
}

// Open returns a store. It reads the SDK's configuration and does not ask
// DynamoDB anything: that the table is there, and is fit, Check tells.
func Open(ctx context.Context, c Config) (*Store, error) {
	return open(ctx, c, nil)
}

// open is Open. If rt is not nil it takes the place of the network.
func open(ctx context.Context, c Config, rt http.RoundTripper, more ...func(*config.LoadOptions) error) (*Store, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	sdkConfig, err := config.LoadDefaultConfig(ctx, append(more, c.options)...)
	if err != nil {
		return nil, fmt.Errorf("configuration of the AWS SDK: %w", err)
	}
	if sdkConfig.Region == "" {
		return nil, errors.New("no AWS region: give one, or set AWS_REGION, or the region of the profile")
	}
	s := &Store{table: c.Table, region: sdkConfig.Region, timeout: c.Timeout, clock: c.Clock, log: c.Log, idle: func() {}}
	s.circuit = newCircuit(c.Clock, c.Log.With("table", c.Table))
	if rt == nil {
		network := c.transport(sdkConfig.HTTPClient)
		rt, s.idle = network, network.CloseIdleConnections
	}
	s.client = sdk.NewFromConfig(sdkConfig, func(o *sdk.Options) {
		o.Retryer = aws.NopRetryer{}
		o.RetryMaxAttempts = 0
		o.HTTPClient = wire{&http.Client{
			Transport:     rt,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
		if c.Endpoint != "" {
			o.BaseEndpoint = &c.Endpoint
		}
	})
	return s, nil
}

// complete fills in the defaults and checks the rest.
func (c *Config) complete() error {
	if c.Table == "" {
		return errors.New("no name of a DynamoDB table")
	}
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("endpoint %q: want a URL such as http://127.0.0.1:8000", c.Endpoint)
		}
	}
	if c.Timeout < 0 {
		return fmt.Errorf("timeout %v: want more than 0", c.Timeout)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// options are for the SDK's own configuration.
func (c *Config) options(o *config.LoadOptions) error {
	o.Region = c.Region
	o.SharedConfigProfile = c.Profile
	o.Logger = logging.LoggerFunc(func(kind logging.Classification, format string, args ...any) {
		c.Log.Debug("aws sdk: "+fmt.Sprintf(format, args...), "kind", kind)
	})
	return nil
}

// transport is the SDK's, with its proxy and its certificates, but for HTTP/1.1
// only: there a try that has no answer takes its connection with it, while the streams
// of HTTP/2 would go on sharing a dead one.
func (c *Config) transport(client any) *http.Transport {
	buildable, ok := client.(*awshttp.BuildableClient)
	if !ok {
		buildable = awshttp.NewBuildableClient()
	}
	dialer := buildable.GetDialer()
	dialer.Timeout = c.Timeout
	t := buildable.GetTransport()
	t.DialContext = dialer.DialContext
	t.TLSHandshakeTimeout = c.Timeout
	t.MaxIdleConnsPerHost = connections
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.TLSClientConfig.NextProtos = []string{"http/1.1"} // the SDK's offers HTTP/2, as a copy does not forget
	return t
}
