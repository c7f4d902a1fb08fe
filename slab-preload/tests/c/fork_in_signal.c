/* A timer interrupts malloc and free, in a program with other allocating threads, and the handler forks. malloc
 * may be interrupted with its locks held: fork must not wait for them, nor for others whose holders wait for them, and
 * the parent must go on as if nothing had been. The timer is set again by the thread that it interrupts, once it is
 * back at work: a periodic one counts what the others do meanwhile, and may be due again whenever the handler ends.
 * argv: other threads, forks, and whether the child allocates too, which POSIX leaves undefined (it runs on
 * state in the middle of a change): there it may fail, but not hang. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t forks, bad, fell;
static int child_allocates;

static void churn(unsigned *seed, void **slots, int n) {
    for (int i = 0; i < 64; i++) {
        *seed = *seed * 1664525 + 1013904223;
        int k = (*seed >> 8) % n;
        free(slots[k]);
        size_t size = (*seed >> 16) % 400 == 0 ? 300000 : (*seed >> 16) % 3000;
        slots[k] = malloc(size);
        if (slots[k] && size) memset(slots[k], 1, size > 64 ? 64 : size);
    }
}

static void on_signal(int signal) {
    pid_t child = fork();
    if (child == 0) {
        alarm(20); /* a hang ends as SIGALRM, which the parent sees */
        if (child_allocates) {
            unsigned seed = 7;
            static void *slots[50];
            for (int i = 0; i < 20; i++) churn(&seed, slots, 50);
            free(realloc(calloc(10, 1000), 200000));
        }
        _exit(0);
    }
    if (child > 0) {
        int status;
        if (waitpid(child, &status, 0) != child) bad = 1;
        else if (WIFSIGNALED(status) && (!child_allocates || WTERMSIG(status) == SIGALRM)) bad = status;
        else if (status != 0) fell++;
        forks++;
    }
}

static void set_timer(unsigned microseconds) {
    struct itimerval timer = {{0, 0}, {0, microseconds}};
    setitimer(ITIMER_PROF, &timer, 0);
}

static void *other(void *arg) {
    unsigned seed = (unsigned)(long)arg;
    static _Thread_local void *slots[300];
    for (;;) churn(&seed, slots, 300);
}

int main(int argc, char **argv) {
    int threads = atoi(argv[1]), wanted = atoi(argv[2]);
    child_allocates = atoi(argv[3]);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &set, 0); /* the main thread takes the signals */
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, other, (void *)(i + 1));
    }
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGPROF, &action, 0);
    unsigned seed = 99;
    static void *slots[300];
    for (int seen = -1; forks < wanted && !bad; churn(&seed, slots, 300)) {
        if (seen == forks) continue;
        seen = forks;
        set_timer(500 + (seed >> 16) % 1000);
    }
    if (bad) fprintf(stderr, "a child ended with status %#x after %d forks\n", (int)bad, (int)forks);
    if (fell) fprintf(stderr, "%d of %d children failed\n", (int)fell, (int)forks);
    return bad != 0;
}
