// What separate.cu finds in another file.
__device__ int scale = 3;
__constant__ int offset = 7;
__device__ int step(int value) { return value + 5; }
__device__ int square(int value) { return value * value; }
typedef int (*Function)(int);
__device__ Function chosen = square;

static __device__ int own = 100;
__global__ void elsewhere(int *out) { *out = scale + own; }
