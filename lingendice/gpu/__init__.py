"""The kernels on CuPy arrays. Their CUDA sources lie in ``cuda/`` and travel in the wheel."""
