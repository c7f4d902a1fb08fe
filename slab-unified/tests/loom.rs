//! Models of the unified backend's concurrent kernels.
fn main() -> std::process::ExitCode {
    page_alloc::model::run(&[])
}
