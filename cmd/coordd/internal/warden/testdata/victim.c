// Processes that do what they can to outlive whoever started them, for tests.
// Those that are not killed end by themselves after some minutes.
//
//	victim MODE              does what MODE says, and says "ready" when it is set up
//	victim session COMMAND…  runs COMMAND in a session of its own
//	victim writer FILE       lets a daemon write the time into FILE, over and over
//	victim stamp FILE        writes the time into FILE, and ends
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { lifetime = 300, many = 50, generations = 8000 };

static int live(void) {
	time_t end = time(NULL) + lifetime;
	while (time(NULL) < end)
		sleep(1);
	return 0;
}

static void ready(void) {
	puts("ready");
	fflush(stdout);
}

// branch starts a child that just lives, in a session of its own if told so.
static void branch(int session) {
	if (fork() == 0) {
		if (session)
			setsid();
		exit(live());
	}
}

// leave lets this process go on as a daemon, and returns 1 in the one it was.
static int leave(void) {
	if (fork() != 0)
		return 1;
	setsid();
	if (fork() != 0)
		_exit(0);
	return 0;
}

// comet is a process that forks and ends, over and over: none of its
// generations lives long enough to be aimed at.
static void comet(int session) {
	if (fork() != 0)
		return;
	for (int i = 0; i < generations; i++) {
		if (fork() != 0)
			_exit(0);
		if (session)
			setsid();
	}
	_exit(0);
}

// put writes the time that counts suspend, in nanoseconds.
static void put(int fd) {
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	char text[32];
	int n = snprintf(text, sizeof text, "%lld%09ld", (long long)now.tv_sec, now.tv_nsec);
	if (pwrite(fd, text, n, 0) != n)
		_exit(1);
}

int main(int argc, char **argv) {
	const char *mode = argc > 1 ? argv[1] : "";
	if (!strcmp(mode, "session") && argc > 2) {
		if (fork() != 0)
			return 0;
		setsid();
		execvp(argv[2], argv + 2);
		return 127;
	}
	if (!strcmp(mode, "writer") || !strcmp(mode, "stamp")) {
		int fd = open(argc > 2 ? argv[2] : "", O_WRONLY | O_CREAT, 0600);
		if (fd < 0)
			return 1;
		put(fd);
		if (*mode == 's')
			return 0;
		signal(SIGTERM, SIG_IGN);
		if (leave()) {
			ready();
			return live();
		}
		for (time_t end = time(NULL) + lifetime; time(NULL) < end; usleep(1000))
			put(fd);
		return 0;
	}
	if (!strcmp(mode, "child")) {
		branch(0);
	} else if (!strcmp(mode, "deaf")) {
		signal(SIGTERM, SIG_IGN);
		signal(SIGINT, SIG_IGN);
		signal(SIGHUP, SIG_IGN);
		branch(0);
	} else if (!strcmp(mode, "sessions")) {
		branch(1);
		if (fork() == 0) { // a session within a session
			setsid();
			branch(1);
			return live();
		}
	} else if (!strcmp(mode, "daemon")) {
		if (!leave())
			return live();
	} else if (!strcmp(mode, "stopped")) {
		for (int session = 0; session < 2; session++)
			if (fork() == 0) {
				if (session)
					setsid();
				raise(SIGSTOP);
				return live();
			}
		ready();
		raise(SIGSTOP);
		return live();
	} else if (!strcmp(mode, "many")) {
		for (int i = 0; i < many; i++)
			branch(1);
	} else if (!strcmp(mode, "comet")) {
		comet(0);
	} else if (!strcmp(mode, "session comet")) {
		comet(1);
	} else if (strcmp(mode, "plain")) {
		return 64;
	}
	ready();
	return live();
}
