//! `bench-suite`: see the library's documentation, or `bench-suite --help`.

fn main() -> std::process::ExitCode {
    bench_suite::cli::main()
}
