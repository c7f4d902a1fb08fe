//! Link arguments of the preload library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=order.ld");
    // Pointers into the library (fork handlers, the thread-exit key's destructor, the program's
    // own copies of `malloc`) outlive any dlclose, and a Rust cdylib cannot be unloaded safely
    // anyway.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The function-pointer tables of the three backends become read-only once relocated, and no
    // symbol is resolved lazily in the middle of a malloc.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,relro,-z,now");
    // The functions that a program uses lie side by side: order.ld says why.
    let order = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("order.ld");
    println!("cargo::rustc-cdylib-link-arg=-T{}", order.display());
    // The windows in which the kernel maps them, 64 KiB, begin where those of the file do.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=65536");
    // The unwinder of the standard library's backtraces comes from the compiler's archive:
    // libgcc_s.so would be one more library to load, and 100 kB of every process.
    println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    // A program may also link it (`cc prog.c -lslab_preload`): record a name, not a path.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libslab_preload.so");
}
