// What DeepSpeed's optimizers and communication for CPUs use of PyTorch's C++ API: tensors, and their binding to Python.
// PyTorch's own header also has modules, optimizers and data sets, which take a compiler as long again to read.
#pragma once
#include <torch/csrc/utils/pybind.h>
#include <torch/types.h>
