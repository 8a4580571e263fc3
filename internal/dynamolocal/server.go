package dynamolocal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	// ports is how many are tried: between its choice and its use anybody may take one.
	ports = 3
	// patience is how long one start may take. It takes 3 s on an idle machine.
	patience = time.Minute
)

// server is a running DynamoDB Local. It listens on all interfaces, and has no
// option against that.
type server struct {
	endpoint string
	cmd      *exec.Cmd
	log      *os.File      // what it says
	ended    chan struct{} // closed when the process has ended
}

func start() (*server, error) {
	folder, java, err := installed()
	if err != nil {
		return nil, err
	}
	var errs []error
	for range ports {
		s, err := launch(folder, java)
		if err == nil {
			if err = s.ready(); err == nil {
				return s, nil
			}
			s.stop()
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("DynamoDB Local does not start: %w", errors.Join(errs...))
}

// launch starts the process. It ends with this one, however that ends.
func launch(folder, java string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp("", "dynamodb-local-*.log")
	if err != nil {
		return nil, err
	}
	os.Remove(log.Name()) // it goes with the last process that has it open
	// The start counts more than speed afterwards.
	cmd := exec.Command(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
		"-Djava.library.path=./DynamoDBLocal_lib", "-jar", "DynamoDBLocal.jar",
		"-inMemory", "-sharedDb", "-disableTelemetry", "-port", strconv.Itoa(port))
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = folder, log, log, life()
	s := &server{
		endpoint: "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		cmd:      cmd, log: log, ended: make(chan struct{}),
	}
	started := make(chan error)
	go func() {
		// The kernel ends the process with the thread that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		log.Close()
		return nil, err
	}
	return s, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// ready waits until the server answers, be it that a request is not signed.
func (s *server) ready() error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			said, _ := io.ReadAll(io.NewSectionReader(s.log, 0, 1<<16))
			return fmt.Errorf("%v: %v\n%s", s.cmd, s.cmd.ProcessState, said)
		case <-limit.C:
			return fmt.Errorf("%v: no answer at %s within %v", s.cmd, s.endpoint, patience)
		case <-tick.C:
			if resp, err := client.Get(s.endpoint); err == nil {
				resp.Body.Close()
				return nil
			}
		}
	}
}

// stop ends the process and waits for its end.
func (s *server) stop() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // its whole process group
	<-s.ended
	s.log.Close()
}
