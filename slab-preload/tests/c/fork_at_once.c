/* Threads that allocate and fork, all at the same time; each child allocates. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4

static int bad;

static void churn(unsigned *seed, void **slots, int n, int times) {
    for (int i = 0; i < times; i++) {
        *seed = *seed * 1664525 + 1013904223;
        int k = (*seed >> 8) % n;
        free(slots[k]);
        size_t size = (*seed >> 16) % 400 == 0 ? 300000 : (*seed >> 16) % 3000;
        slots[k] = malloc(size);
        if (!slots[k]) abort();
        memset(slots[k], 1, size > 64 ? 64 : size);
    }
}

static void *forker(void *arg) {
    unsigned seed = (unsigned)(long)arg;
    static _Thread_local void *slots[300];
    for (int i = 0; i < 100; i++) {
        churn(&seed, slots, 300, 500);
        pid_t child = fork();
        if (child == 0) {
            alarm(20); /* a hang ends as SIGALRM, which the parent sees */
            churn(&seed, slots, 300, 2000);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "thread %ld, fork %d: status %#x\n", (long)arg, i, child < 0 ? -1 : status);
            __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
            break;
        }
    }
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, forker, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return bad;
}
