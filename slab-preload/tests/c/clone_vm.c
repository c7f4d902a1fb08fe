/* A child of clone(CLONE_VM) shares the parent's memory and, as it got no TLS of its own, the parent's thread-local
 * storage: it allocates and frees as if it were the parent, which waits. Both free what the other made. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 2000 };
static unsigned char *blocks[N];
static int round_of;

static size_t size_of(int i) { return i % 500 == 7 ? 200000 : (size_t)i * 37 % 3000 + 1; }

static int check_and_replace(unsigned char before, unsigned char now) {
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; blocks[i] && k < size_of(i); k += 13) if (blocks[i][k] != before) return 1;
        free(blocks[i]);
        if (!(blocks[i] = malloc(size_of(i)))) return 2;
        memset(blocks[i], now, size_of(i));
    }
    return 0;
}

static int child(void *arg) { return check_and_replace(round_of, round_of + 1); }

int main(void) {
    static char stack[1 << 18] __attribute__((aligned(64)));
    int flags[] = {CLONE_VM | SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD, CLONE_VM | CLONE_FILES | CLONE_FS | SIGCHLD};
    if (check_and_replace(0, 1)) return 2;
    for (int i = 0; i < 30; i++) {
        round_of = i % 100 + 1;
        int status = -1;
        pid_t pid = clone(child, stack + sizeof stack, flags[i % 3], 0);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
            fprintf(stderr, "child %d: status %#x\n", i, status);
            return 3;
        }
        int bad = check_and_replace(round_of + 1, (i + 1) % 100 + 1);
        if (bad) { fprintf(stderr, "parent after child %d: %d\n", i, bad); return 4; }
    }
    return 0;
}
