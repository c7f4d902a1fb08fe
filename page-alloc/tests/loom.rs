//! Models of the page layer's concurrent kernels.
fn main() -> std::process::ExitCode {
    page_alloc::model::run(&[])
}
