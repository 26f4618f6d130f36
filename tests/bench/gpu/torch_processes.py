"""A tensor of one process used in another by PyTorch's own means (torch.multiprocessing), which is CUDA IPC underneath."""

import torch
import torch.multiprocessing as multiprocessing


def consume(tensors, answers):
    tensor = tensors.get()
    right = bool((tensor == torch.arange(tensor.numel(), device="cuda").reshape(tensor.shape)).all())
    tensor.add_(1)
    torch.cuda.synchronize()
    del tensor
    answers.put(right)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    tensors, answers = multiprocessing.Queue(), multiprocessing.Queue()
    process = multiprocessing.Process(target=consume, args=(tensors, answers))
    process.start()
    tensor = torch.arange(1 << 22, device="cuda").reshape(1024, -1)
    tensors.put(tensor)
    assert answers.get(timeout=120), "the consumer sees the tensor"
    torch.cuda.synchronize()
    assert int(tensor[0, 0]) == 1, "the producer sees what the consumer wrote"
    process.join(60)
    assert process.exitcode == 0
    print("PyTorch shares tensors between processes")
