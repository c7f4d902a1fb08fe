/* Threads with the smallest stacks there are (PTHREAD_STACK_MIN, 16 KiB) do everything a malloc can do, slow paths
 * included; a guard page below each stack turns an overflow into a crash. */
#define _GNU_SOURCE
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *work(void *arg) {
    long n = (long)arg;
    void *p[120];
    for (int i = 0; i < 120; i++) {
        size_t size = i % 30 == 29 ? (size_t)300000 + n * 1000 : (size_t)16 << i % 12;
        p[i] = i % 3 == 0 ? calloc(1, size) : i % 3 == 1 ? malloc(size) : memalign(128, size);
        if (!p[i]) return (void *)1;
        memset(p[i], 1, 16);
    }
    for (int i = 0; i < 120; i++) {
        p[i] = realloc(p[i], (size_t)24 << (i + n) % 15);
        if (!p[i]) return (void *)2;
    }
    for (int i = 0; i < 120; i++) free(p[(i * 7 + n) % 120]);
    if (n % 20 == 0) malloc_trim(0);
    if (n % 20 == 1) (void)mallinfo2();
    return 0;
}

int main(void) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN)) return 2;
    for (long round = 0; round < 40; round++) {
        pthread_t t[10];
        for (long i = 0; i < 10; i++) if (pthread_create(&t[i], &attr, work, (void *)(round * 10 + i))) return 3;
        for (int i = 0; i < 10; i++) {
            void *result;
            pthread_join(t[i], &result);
            if (result) return 4;
        }
    }
    return 0;
}
