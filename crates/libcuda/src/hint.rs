//! What to do about code that the software GPU cannot run, for the framework that loads it.
//!
//! The worker says what is wrong with an image, and does not know whose it is. The program's own process does: frameworks are
//! libraries that it has loaded. The line is printed once, in the program's own output, which is what a pod's log shows.

use std::ffi::OsStr;

use cuda_abi::error::{CUDA_ERROR_NO_BINARY_FOR_GPU, CUresult};

use crate::{device, entry};

/// A part of a path by which a framework is known, and what there is to say.
const FRAMEWORKS: [(&str, &str); 6] = [
    (
        "/libtorch_cuda",
        "PyTorch's wheels hold no PTX and do not run on the software GPU; use a GPU, or PyTorch's CPU backend",
    ),
    (
        "/libtensorflow_",
        "TensorFlow's wheels hold no PTX and do not run on the software GPU; use a GPU, or its CPU backend",
    ),
    ("/jaxlib/", "JAX compiles to machine code and does not run on the software GPU; use a GPU, or its CPU backend"),
    (CUPY, "CuPy must keep PTX for the software GPU: set CUPY_COMPILE_WITH_PTX=1"),
    ("/numba/", "Numba must leave linking to the driver for the software GPU: pip uninstall nvidia-nvjitlink-cu12"),
    ("/triton/", "Triton compiles to machine code and does not run on the software GPU; use a GPU"),
];

const CUPY: &str = "/cupy/";

/// Kernels of CuPy's own have PTX then; what is refused is a library's.
const CUPY_WITH_PTX: &str = "CuPy's kernels have PTX (CUPY_COMPILE_WITH_PTX is set), but NVIDIA's libraries behind \
                             cupy.matmul, linalg, fft and sparse (cuBLAS, cuSOLVER, cuFFT, cuSPARSE) hold none and do not run \
                             on the software GPU; use a GPU, or NumPy for these";

const NO_FRAMEWORK: &str = "this program has machine code for NVIDIA GPUs and no PTX, which the software GPU needs: compile it with \
                            nvcc -gencode arch=compute_75,code=compute_75";

/// An image was refused.
#[cold]
pub(crate) fn refused(code: CUresult) {
    if code == CUDA_ERROR_NO_BINARY_FOR_GPU && device::is_soft() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        entry::say_once(advice(&maps, cupy_keeps_ptx(std::env::var_os("CUPY_COMPILE_WITH_PTX").as_deref())));
    }
}

/// As CuPy reads its variable: a number, of which only 1 counts.
fn cupy_keeps_ptx(value: Option<&OsStr>) -> bool {
    value.and_then(OsStr::to_str).is_some_and(|text| text.trim().parse() == Ok(1))
}

/// The first framework of the list that is among these mapped files: it is the one that brings code of its own.
fn advice(maps: &str, cupy_keeps_ptx: bool) -> &'static str {
    let loaded = |(part, _): &&(&str, &str)| maps.contains(part);
    match FRAMEWORKS.iter().find(loaded) {
        Some((CUPY, _)) if cupy_keeps_ptx => CUPY_WITH_PTX,
        Some((_, advice)) => advice,
        None => NO_FRAMEWORK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_already_is_not_the_advice() {
        let cupy = "7f00-7f01 r-xp 00000000 fe:00 1 /venv/cupy/_core/core.so\n";
        let with = |value: &str| advice(cupy, cupy_keeps_ptx(Some(OsStr::new(value))));
        assert!(with("1").contains("cuBLAS") && !with("1").contains("set CUPY_COMPILE_WITH_PTX=1"));
        for off in ["0", "", "yes"] {
            assert!(with(off).ends_with("set CUPY_COMPILE_WITH_PTX=1"), "{off}");
        }
        assert!(!cupy_keeps_ptx(None));
    }

    #[test]
    fn advice_names_the_framework_that_is_loaded() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 fe:00 1 {path}\n");
        let numpy = line("/venv/lib/python3.11/site-packages/numpy/_core/_multiarray.so");
        let cupy = line("/venv/lib/python3.11/site-packages/cupy/_core/core.cpython-311-x86_64-linux-gnu.so");
        let torch = line("/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so");
        assert_eq!(advice(&numpy, false), NO_FRAMEWORK);
        assert!(advice(&format!("{numpy}{cupy}"), false).ends_with("set CUPY_COMPILE_WITH_PTX=1"));
        assert!(advice(&format!("{cupy}{torch}"), true).starts_with("PyTorch's wheels hold no PTX"));
    }
}
