// Sorts, scans and sums of the Thrust library, which choose their kernels by what the device says of itself.
#include "check.h"

#include <algorithm>
#include <numeric>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

int main() {
    const int n = 100000;
    thrust::host_vector<int> host(n), sums(n), back;
    unsigned state = 1;
    for (int &value : host) value = (state = state * 1664525 + 1013904223) >> 22;
    thrust::device_vector<int> device = host, running(n);

    CHECK(thrust::reduce(device.begin(), device.end(), 0L) == std::accumulate(host.begin(), host.end(), 0L));
    thrust::sort(device.begin(), device.end());
    std::sort(host.begin(), host.end());
    back = device;
    CHECK(std::equal(host.begin(), host.end(), back.begin()));
    thrust::inclusive_scan(device.begin(), device.end(), running.begin());
    std::partial_sum(host.begin(), host.end(), sums.begin());
    back = running;
    CHECK(std::equal(sums.begin(), sums.end(), back.begin()));
    CHECK(thrust::unique(device.begin(), device.end()) - device.begin() ==
          std::unique(host.begin(), host.end()) - host.begin());
    thrust::sort(running.begin(), running.end(), thrust::greater<int>());
    std::reverse(sums.begin(), sums.end());
    back = running;
    CHECK(std::equal(sums.begin(), sums.end(), back.begin()));
    return pass();
}
