/* Fork handlers of the program allocate and free: some registered before any constructor ran (and so before the
 * library's own), some later. Other threads allocate all the while; the child forks a grandchild. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int calls[3];
static void *kept[16];

static void work(void) {
    for (int i = 0; i < 16; i++) {
        size_t size = (size_t)17 << (i % 14);
        free(kept[i]);
        kept[i] = malloc(size);
        if (!kept[i]) abort();
        memset(kept[i], i, size);
    }
    void *big = calloc(1, 3 << 20);
    big = realloc(big, 5 << 20);
    if (!big) abort();
    free(big);
}
static void prepare(void) { calls[0]++; work(); }
static void parent(void) { calls[1]++; work(); }
static void child(void) { calls[2]++; work(); }

static void early(void) { pthread_atfork(prepare, parent, child); }
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = early;

static void *other(void *arg) {
    unsigned seed = (unsigned)(long)arg + 1;
    void *slots[200] = {0};
    for (;;) {
        seed = seed * 1664525 + 1013904223;
        int k = (seed >> 8) % 200;
        free(slots[k]);
        slots[k] = malloc((seed >> 16) % 500 ? (seed >> 16) % 2000 : 1 << 20);
    }
}

/* Forks; the child does `deeper` more generations. */
static int generation(int deeper) {
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        for (int i = 0; i < 2000; i++) free(malloc(i));
        _exit(deeper ? generation(deeper - 1) : 0);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return 9;
    return status != 0;
}

int main(void) {
    for (int i = 0; i < 60; i++) /* more than glibc's table holds without malloc */
        pthread_atfork(i % 20 ? 0 : prepare, i % 20 ? 0 : parent, i % 20 ? 0 : child);
    for (long i = 0; i < 3; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, other, (void *)i);
    }
    for (int i = 0; i < 60; i++) {
        int bad = generation(1);
        if (bad) {
            fprintf(stderr, "fork %d: a child failed\n", i);
            return 1;
        }
    }
    if (calls[0] != 60 * 4 || calls[1] != 60 * 4) {
        fprintf(stderr, "handlers ran %d and %d times\n", calls[0], calls[1]);
        return 2;
    }
    return 0;
}
