/* Threads that allocate, write, hand over and free while signals interrupt them and they move
 * between CPUs: percpu THREADS ROUNDS. Every block carries a stamp that its owner checks. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { HELD = 64, MAIL = 256 };
static int rounds;
static _Atomic(uint64_t *) mail[MAIL];
static atomic_int failed, running;

static void on_alarm(int sig) {
    (void)sig;
}

static uint64_t *make(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    unsigned r = *seed >> 8;
    size_t size = 16 + (r % 8 == 0 ? r / 8 % 2000 : r / 8 % 200);
    uint64_t *p = malloc(size);
    if (!p) {
        atomic_store(&failed, 1);
        return p;
    }
    size_t words = size / 8;
    p[0] = words;
    for (size_t i = 1; i < words; i++) p[i] = (uint64_t)(uintptr_t)p + i;
    return p;
}

static void end(uint64_t *p) {
    if (!p) return;
    for (size_t i = 1; i < p[0]; i++)
        if (p[i] != (uint64_t)(uintptr_t)p + i) {
            fprintf(stderr, "block %p changed at %zu\n", (void *)p, i);
            atomic_store(&failed, 1);
            break;
        }
    memset(p, 0xdd, p[0] * 8 > 4096 ? 16 : p[0] * 8);
    free(p);
}

static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg * 2654435761u + 1;
    uint64_t *held[HELD] = {0};
    for (int i = 0; i < rounds; i++) {
        int at = (seed >> 11) % HELD;
        end(held[at]);
        held[at] = make(&seed);
        if (i % 16 == 0) {
            uint64_t *got = atomic_exchange(&mail[(seed >> 9) % MAIL], held[at]);
            held[at] = got;
        }
        if (i % 4096 == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET((i / 4096 + (int)(uintptr_t)arg) % (int)sysconf(_SC_NPROCESSORS_ONLN), &one);
            sched_setaffinity(0, sizeof one, &one);
        }
    }
    for (int i = 0; i < HELD; i++) end(held[i]);
    atomic_fetch_sub(&running, 1);
    return 0;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 8;
    rounds = argc > 2 ? atoi(argv[2]) : 10000;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &timer, 0);
    pthread_t *ids = calloc(threads, sizeof *ids);
    atomic_store(&running, threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], 0, work, (void *)(uintptr_t)i)) return 2;
    /* Somebody empties the slots meanwhile. */
    while (atomic_load(&running) > 0) {
        malloc_trim(0);
        usleep(500);
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
    for (int i = 0; i < MAIL; i++) end(atomic_load(&mail[i]));
    free(ids);
    struct itimerval none = {0};
    setitimer(ITIMER_REAL, &none, 0);
    return atomic_load(&failed);
}
