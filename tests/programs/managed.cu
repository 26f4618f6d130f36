// Managed memory: one pointer, touched in turns by the host and by kernels.
#include "check.h"

struct Node {
    int value;
    Node *next;
};

__global__ void increment(Node *list) {
    for (Node *node = list; node; node = node->next) node->value += 1;
}

int main() {
    Node *nodes;
    const int n = 1000;
    OK(cudaMallocManaged(&nodes, n * sizeof(Node)));
    for (int i = 0; i < n; i++) nodes[i] = {i, i + 1 < n ? &nodes[i + 1] : nullptr};
    for (int round = 1; round <= 3; round++) {
        increment<<<1, 1>>>(nodes);
        LAUNCHED();
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < n; i++) CHECK(nodes[i].value == i + round);
    }
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, nodes));
    CHECK(attributes.type == cudaMemoryTypeManaged);
    std::vector<Node> copy(n);
    OK(cudaMemcpy(copy.data(), nodes, n * sizeof(Node), cudaMemcpyDefault));
    CHECK(copy[n - 1].value == n - 1 + 3);
    OK(cudaFree(nodes));

    return pass();
}
