#!/usr/bin/env python3
"""A worker that works only while it holds a lease of coordd, over HTTP.

    python3 worker.py nightly

It needs Python 3.8 or later, and nothing else. Put your own work into work():
small steps, each begun only while lease.left() is enough for it, and the token
passed to whatever the step writes to. Work that cannot look at a clock is for
`coordd run`, which kills it in time.

Exit codes: 0 it worked; 64 a value is wrong; 69 no node has answered, or the
arbiter has taken over and nothing is granted anew yet; 75 somebody else holds the
lease; 76 the lease was lost.
"""
import argparse
import http.client
import json
import os
import secrets
import signal
import sys
import threading
import time
import urllib.parse

RHO = 0.01  # two clocks' rates differ by no more than this


def now():
    """Seconds by a clock that nobody sets. On Linux it also counts sleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Refused(Exception):
    """A certain answer: error["code"] says which."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.code = error["code"]


class Unanswered(Exception):
    """Nothing is known: the call may have been carried out, or still be."""


class Grace(Exception):
    """The arbiter has taken over, in this epoch: holders reclaim their leases, and
    nothing is granted anew for so many seconds at most."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.epoch = error["details"]["epoch"]
        self.fresh_in = error["details"]["fresh_in_ms"] / 1000


class Lost(Exception):
    """The lease is not held any more, or may soon be somebody else's."""


class Nodes:
    """The HTTP addresses of a cluster; any node will do."""

    def __init__(self, urls):
        self.hosts = [urllib.parse.urlsplit(url).netloc for url in urls]
        self.at = 0  # which one is asked

    def post(self, path, body, timeout):
        at = self.at
        conn = http.client.HTTPConnection(self.hosts[at], timeout=timeout)
        try:
            conn.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = conn.getresponse()
            status, body = answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as err:
            self.at = (at + 1) % len(self.hosts)
            raise Unanswered(f"{self.hosts[at]}: {err}") from err
        finally:
            conn.close()
        if status == 200:
            return body
        if body["error"]["code"] == "GRACE":
            raise Grace(body["error"])
        if status in (500, 503, 504):
            self.at = (at + 1) % len(self.hosts)
            raise Unanswered(f'{self.hosts[at]}: {body["error"]["message"]}')
        raise Refused(body["error"])


class Lease:
    """A lease that was granted. acquire() makes one."""

    def __init__(self, nodes, name, session, grant, ttl, deadline):
        self.nodes, self.name, self.session, self.token, self.ttl = nodes, name, session, grant["token"], ttl
        self.granted = {"ttl_ms": grant["ttl_ms"], "acquired_at_unix_ms": grant["acquired_at_unix_ms"]}
        self.lock = threading.Lock()  # guards deadline and over
        self.deadline = deadline
        self.over = None  # why nobody may rely on it any more
        self.done = threading.Event()  # ends the heartbeat
        self.heart = threading.Thread(target=self.beat, daemon=True)

    def left(self):
        """For how many seconds the lease may be relied on; 0: stop. It asks the
        clock alone, no network, and once it was 0 it stays so."""
        with self.lock:
            if self.over is None and now() >= self.deadline:
                self.over = "it was not renewed in time"
            return 0 if self.over else self.deadline - now()

    def body(self):
        return {"name": self.name, "session": self.session, "token": self.token}

    def keep(self):
        """Renew the lease, or reclaim it if the arbiter has taken over. Tell whether
        that was done."""
        try:
            return self.ask("/v1/renew", self.body())
        except Grace as grace:
            claim = dict(self.body(), epoch=grace.epoch, **self.granted)
        if self.left() == 0:
            return False  # only what is relied on may be reclaimed
        try:
            return self.ask("/v1/reclaim", claim)
        except Grace:
            return False  # in yet another epoch, which the next renewal will tell

    def ask(self, path, body):
        """Tell whether the lease was renewed. No answer is no loss."""
        sent = now()  # before the request: that is what the deadline counts from
        try:
            self.nodes.post(path, body, timeout=min(2, self.ttl / 8))
        except Unanswered:
            return False
        except Refused as err:
            if err.code == "NOT_HELD":
                with self.lock:
                    self.over = self.over or str(err)
            return False
        if self.left() == 0:
            return False  # the answer came too late to count
        with self.lock:
            self.deadline = sent + self.ttl * (1 - RHO)
        return True

    def beat(self):
        pause = self.ttl / 3
        while not self.done.wait(pause) and self.left() > 0:
            pause = self.ttl / 3 if self.keep() else min(0.5, self.ttl / 20)

    def release(self):
        """Give the lease back, also one that was lost. From here on nobody relies
        on it, whatever the answer; the call may be repeated as often as need be."""
        with self.lock:
            self.over = self.over or "it was released"
        self.done.set()
        if self.heart.is_alive():
            self.heart.join()  # a reclaim that comes after the release would bring the lease back
        give_back(self.nodes, "/v1/release", self.body())


def give_back(nodes, path, body):
    for _ in range(5):
        try:
            return nodes.post(path, body, timeout=2)
        except Refused:
            return None  # it had ended before
        except Unanswered:
            time.sleep(0.2)
    return None  # it ends by itself, at its deadline


def acquire(nodes, name, ttl, wait):
    """Wait for the lease, at most wait seconds."""
    session, attempt = secrets.token_hex(16), secrets.token_hex(16)
    first = now()  # before the first request; its repeats, of the same attempt, give no more time
    try:
        grant = attempt_until(nodes, first + wait, name=name, session=session, attempt=attempt, ttl_ms=int(ttl * 1000))
    except BaseException:  # a copy of the request may be granted all the same
        give_back(nodes, "/v1/withdraw", {"name": name, "session": session, "attempt": attempt})
        raise
    lease = Lease(nodes, name, session, grant, ttl, first + ttl * (1 - RHO))
    if grant["waited"] or lease.deadline - now() < ttl / 2:
        confirm(lease)
    lease.heart.start()
    return lease


def attempt_until(nodes, end, **claim):
    while True:
        wait = max(0, end - now())
        try:
            return nodes.post("/v1/acquire", dict(claim, wait_ms=int(wait * 1000)), timeout=wait + 5)
        except Unanswered:
            if now() >= end:
                raise
            time.sleep(0.2)
        except Grace as grace:
            if now() >= end:
                raise
            time.sleep(max(0.2, min(grace.fresh_in, end - now())))


def confirm(lease):
    """A grant that has waited may be over in a moment, while this process slept:
    only a renewal makes it one to rely on, and only from then on."""
    lease.deadline = now() + lease.ttl  # to try for so long; nobody else has the lease yet
    while lease.left() > 0:
        try:
            if lease.ask("/v1/renew", lease.body()):
                return
        except Grace:
            pass  # it is not reclaimed: nobody has relied on it yet
        time.sleep(0.05)
    lease.release()
    raise Lost(lease.over)


def work(lease, steps, seconds):
    for step in range(steps):
        if lease.left() < seconds:
            raise Lost(lease.over or "too little of it is left for another step")
        print(f"step {step} under token {lease.token}", flush=True)  # what it writes to should refuse a smaller token
        time.sleep(seconds)


def main():
    parser = argparse.ArgumentParser(description="Work in steps while holding a lease.")
    parser.add_argument("name")
    parser.add_argument("--ttl", type=float, default=15, help="seconds for which the lease is good without a renewal")
    parser.add_argument("--wait", type=float, default=60, help="seconds to stand in line")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1, help="that one step takes")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    nodes = Nodes(os.environ.get("COORDD_URL", "http://127.0.0.1:7421").split(","))
    try:
        lease = acquire(nodes, args.name, args.ttl, args.wait)
    except Refused as err:
        print(f"worker: {err}", file=sys.stderr)
        return {"HELD": 75, "EXHAUSTED": 69}.get(err.code, 64)
    except (Unanswered, Grace) as err:
        print(f"worker: {err}", file=sys.stderr)
        return 69
    except Lost as err:
        print(f"worker: {err}", file=sys.stderr)
        return 76
    try:
        work(lease, args.steps, args.seconds)
    except Lost as err:
        print(f"worker: {err}", file=sys.stderr)
        return 76
    finally:
        lease.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
