// operator new in all forms at the edges: bad_alloc, the handler loop, nothrow, alignment, zero size.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

static int failed;
#define CHECK(c) do { if (!(c)) { std::fprintf(stderr, "line %d: %s\n", __LINE__, #c); failed = 1; } } while (0)

template <class F> static bool throws_bad_alloc(F f) {
    std::string unwound; // its destructor must run on the way
    try { f(); } catch (const std::bad_alloc &) { return true; } catch (...) { return false; }
    return false;
}

// A result that is used: the compiler may drop a call whose result is not.
static void *volatile sink;

static int handled;
static void give_up() { if (++handled == 3) std::set_new_handler(nullptr); }
struct stop {};
static void throw_other() { handled++; throw stop{}; }

int main() {
    volatile std::size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, (std::size_t)PTRDIFF_MAX + 1, PTRDIFF_MAX, (std::size_t)1 << 62};
    for (std::size_t n : sizes) {
        CHECK(throws_bad_alloc([&] { sink = operator new(n); }));
        CHECK(throws_bad_alloc([&] { sink = operator new[](n); }));
        for (std::size_t a : {16, 64, 4096, 1 << 22}) {
            CHECK(throws_bad_alloc([&] { sink = operator new(n, std::align_val_t(a)); }));
            CHECK(throws_bad_alloc([&] { sink = operator new[](n, std::align_val_t(a)); }));
            CHECK((sink = operator new(n, std::align_val_t(a), std::nothrow)) == nullptr);
            CHECK((sink = operator new[](n, std::align_val_t(a), std::nothrow)) == nullptr);
        }
        CHECK((sink = operator new(n, std::nothrow)) == nullptr);
        CHECK((sink = operator new[](n, std::nothrow)) == nullptr);

        // the handler is called until it gives up
        for (int form = 0; form < 4; form++) {
            handled = 0;
            std::set_new_handler(give_up);
            switch (form) {
            case 0: CHECK(throws_bad_alloc([&] { sink = operator new(n); })); break;
            case 1: CHECK(throws_bad_alloc([&] { sink = operator new[](n, std::align_val_t(128)); })); break;
            case 2: CHECK((sink = operator new(n, std::nothrow)) == nullptr); break;
            case 3: CHECK((sink = operator new[](n, std::align_val_t(128), std::nothrow)) == nullptr); break;
            }
            CHECK(handled == 3);
        }
        // and its own exception passes through
        handled = 0;
        std::set_new_handler(throw_other);
        try { sink = operator new(n); CHECK(false); } catch (const stop &) {}
        CHECK(handled == 1);
        std::set_new_handler(nullptr);
    }
    CHECK(throws_bad_alloc([] { std::vector<long> v; v.reserve(v.max_size()); }));

    void *a = operator new(0), *b = operator new[](0), *c = operator new(0, std::nothrow), *d = operator new(0, std::align_val_t(64));
    CHECK(a && b && c && d && a != b && b != c && a != c && d != a);
    operator delete(a, (std::size_t)0);
    operator delete[](b);
    operator delete(c, std::nothrow);
    operator delete(d, (std::size_t)0, std::align_val_t(64));

    for (std::size_t n = 1; n < 3000000; n = n * 2 + 3)
        for (std::size_t align = 16; align <= 1 << 16; align *= 4) {
            char *p[4] = {(char *)operator new(n), (char *)operator new[](n, std::nothrow), (char *)operator new(n, std::align_val_t(align)), (char *)operator new[](n, std::align_val_t(align), std::nothrow)};
            for (char *q : p) { CHECK(q); std::memset(q, 1, n); }
            CHECK((uintptr_t)p[2] % align == 0 && (uintptr_t)p[3] % align == 0);
            operator delete(p[0], n);
            operator delete[](p[1], n);
            operator delete(p[2], n, std::align_val_t(align));
            operator delete[](p[3], std::align_val_t(align), std::nothrow);
        }
    return failed;
}
