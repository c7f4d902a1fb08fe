/*
 * slabmalloc.h - the functions that libslab_preload.so exports.
 *
 * Nothing needs this header: preload the library, or link it before libc (cc prog.c -lslab_preload), and <stdlib.h>
 * and <malloc.h> declare nearly all of it. It is here for what they lack with the installed libc (the C23 names,
 * cfree) and to say in one place what each function does at its edges.
 *
 * Every block of 16 bytes or more is aligned to 16. A request for 0 bytes gives a unique block, to be freed like any
 * other. A request above PTRDIFF_MAX, or whose size overflows, fails. Functions that fail return NULL and set errno
 * to ENOMEM unless it says otherwise below; freeing never changes errno. A block of any function here may be given
 * to any other, and to the C++ operators delete, which are replaced as well, in all forms.
 *
 * Freeing a block twice, or what is no block, stops the process with a line on standard error that names the fault
 * and the pointer. SLABMALLOC_CONF="on_error=report" only reports.
 *
 * SLABMALLOC_CONF, read once at the first call and ignored in set-user-ID programs, holds key=value pairs separated by
 * commas: backend=unified|slub|slab, stats=exit|json:PATH, verbose=0|1, percpu=auto|rseq|thread, hugepage=auto|on|off,
 * purge=MILLISECONDS|off, arena_max=BYTES[K|M|G], on_error=abort|report|ignore, secure=0|1,
 * debug=FZPUT[:CACHE-GLOB[;CACHE-GLOB]], leaks=exit|PATH.
 */
#ifndef SLABMALLOC_H
#define SLABMALLOC_H

#include <malloc.h> /* struct mallinfo, struct mallinfo2 */
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#define SLABMALLOC_NOEXCEPT noexcept(true)
#else
#define SLABMALLOC_NOEXCEPT
#endif

/* --- Allocation ------------------------------------------------------------------------------------------------- */

/* A block of size bytes with undefined contents. */
void *malloc(size_t size) SLABMALLOC_NOEXCEPT;

/* A block of count * size zeroed bytes. */
void *calloc(size_t count, size_t size) SLABMALLOC_NOEXCEPT;

/* Resizes block, moving it if need be; on failure block stays as it was. realloc(NULL, size) is malloc(size);
 * realloc(block, 0) frees block and returns NULL. */
void *realloc(void *block, size_t size) SLABMALLOC_NOEXCEPT;

/* realloc(block, count * size). */
void *reallocarray(void *block, size_t count, size_t size) SLABMALLOC_NOEXCEPT;

/* A block at a multiple of align. size need not be a multiple of it. EINVAL if align is not a power of two. */
void *aligned_alloc(size_t align, size_t size) SLABMALLOC_NOEXCEPT;

/* As aligned_alloc, but an align between two powers of two means the next one; EINVAL above the largest. */
void *memalign(size_t align, size_t size) SLABMALLOC_NOEXCEPT;

/* Puts a block at a multiple of align into *out and returns 0; or returns EINVAL (align is not a power of two, or not
 * a multiple of sizeof(void *)) or ENOMEM, and leaves *out alone. errno is never changed. */
int posix_memalign(void **out, size_t align, size_t size) SLABMALLOC_NOEXCEPT;

/* A block at a page boundary. pvalloc also rounds size up to whole pages. */
void *valloc(size_t size) SLABMALLOC_NOEXCEPT;
void *pvalloc(size_t size) SLABMALLOC_NOEXCEPT;

/* --- Release ---------------------------------------------------------------------------------------------------- */

/* Frees a block; NULL is allowed. cfree is an old name of free. */
void free(void *block) SLABMALLOC_NOEXCEPT;
void cfree(void *block) SLABMALLOC_NOEXCEPT;

/* C23: free with the size, or alignment and size, that were asked for. A size of another class is reported. */
void free_sized(void *block, size_t size) SLABMALLOC_NOEXCEPT;
void free_aligned_sized(void *block, size_t align, size_t size) SLABMALLOC_NOEXCEPT;

/* Gives free memory back to the system at once; 1 if there was some, else 0. pad is ignored: glibc keeps that much at
 * the top of its heap, and this heap has no top. */
int malloc_trim(size_t pad) SLABMALLOC_NOEXCEPT;

/* The same, by the name that goes with slabmalloc_validate: the calling thread's queues, objects that debug= holds back,
 * empty slabs, free pages. */
int slabmalloc_shrink(void) SLABMALLOC_NOEXCEPT;

/* --- Information ------------------------------------------------------------------------------------------------ */

/* How many bytes of block may be used: at least what was asked for; 0 for NULL. */
size_t malloc_usable_size(void *block) SLABMALLOC_NOEXCEPT;

/* Totals. mallinfo has int fields, each at most INT_MAX. arena: bytes taken from the system; hblkhd: bytes of large
 * blocks; fsmblks: bytes of free small blocks in threads' queues; uordblks: bytes in use; fordblks: bytes of arena not
 * in use; keepcost: bytes of whole free pages. The others are 0. */
struct mallinfo mallinfo(void) SLABMALLOC_NOEXCEPT;
struct mallinfo2 mallinfo2(void) SLABMALLOC_NOEXCEPT;

/* The figures as XML on stream. options must be 0, else EINVAL is returned; -1 when stream cannot be written. */
int malloc_info(int options, FILE *stream) SLABMALLOC_NOEXCEPT;

/* The figures as text on standard error. */
void malloc_stats(void) SLABMALLOC_NOEXCEPT;

/* Checks red zones and poison of every object under debug=, and the slabs and lists of every cache. Reports each fault
 * on standard error, does what on_error says (abort by default), and returns the number of faults: 0 when all is well.
 * No other thread may allocate or free meanwhile. */
int slabmalloc_validate(void) SLABMALLOC_NOEXCEPT;

/* Accepts every option, ignores it, and returns 1. */
int mallopt(int param, int value) SLABMALLOC_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#undef SLABMALLOC_NOEXCEPT

#endif
