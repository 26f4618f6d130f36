//! What to do about code that the software GPU cannot run, for the framework that loads it.
//!
//! The worker says what is wrong with an image, and does not know whose it is. The program's own process does: frameworks are
//! libraries that it has loaded. The line is printed once, in the program's own output, which is what a pod's log shows.

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
    ("/cupy/", "CuPy must keep PTX for the software GPU: set CUPY_COMPILE_WITH_PTX=1"),
    ("/numba/", "Numba must leave linking to the driver for the software GPU: pip uninstall nvidia-nvjitlink-cu12"),
    ("/triton/", "Triton compiles to machine code and does not run on the software GPU; use a GPU"),
];

const NO_FRAMEWORK: &str = "this program has machine code for NVIDIA GPUs and no PTX, which the software GPU needs: compile it with \
                            nvcc -gencode arch=compute_75,code=compute_75";

/// An image was refused.
#[cold]
pub(crate) fn refused(code: CUresult) {
    if code == CUDA_ERROR_NO_BINARY_FOR_GPU && device::is_soft() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        entry::say_once(advice(&maps));
    }
}

/// The first framework of the list that is among these mapped files: it is the one that brings code of its own.
fn advice(maps: &str) -> &'static str {
    let loaded = |(part, _): &&(&str, &str)| maps.contains(part);
    FRAMEWORKS.iter().find(loaded).map_or(NO_FRAMEWORK, |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_framework_that_is_loaded() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 fe:00 1 {path}\n");
        let numpy = line("/venv/lib/python3.11/site-packages/numpy/_core/_multiarray.so");
        let cupy = line("/venv/lib/python3.11/site-packages/cupy/_core/core.cpython-311-x86_64-linux-gnu.so");
        let torch = line("/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so");
        assert_eq!(advice(&numpy), NO_FRAMEWORK);
        assert!(advice(&format!("{numpy}{cupy}")).starts_with("CuPy"));
        assert!(advice(&format!("{cupy}{torch}")).starts_with("PyTorch's wheels hold no PTX"));
    }
}
