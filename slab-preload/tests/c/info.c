/* malloc_info on standard output, malloc_stats on standard error, with some blocks live */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static ssize_t refuse(void *cookie, const char *data, size_t size) { return 0; }

int main(void) {
    for (int i = 0; i < 1000; i++) memset(malloc(i * 10 + 1), 1, 1);
    memset(malloc(10 << 20), 1, 100);
    if (malloc_info(0, stdout) != 0) return 1;
    /* a stream that refuses to be written must show as -1 */
    FILE *full = fopencookie(NULL, "w", (cookie_io_functions_t){.write = refuse});
    setvbuf(full, NULL, _IONBF, 0);
    if (malloc_info(0, full) != -1) return 2;
    malloc_stats();
    return 0;
}
