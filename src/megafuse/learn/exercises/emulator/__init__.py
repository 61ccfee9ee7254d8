"""A GPU that watches: a learner's CUDA kernel on the CPU, each access counted, each mistake named.

    fiber.h    a thread that runs until it waits
    grid.h     threads, warps and blocks; barriers, shuffles, clocks; what a warp asks for together
    arrays.h   who touched each word last: bounds, alignment, races
    core.cpp   the three, compiled once

    api.h      what core.cpp and a kernel call of each other
    memory.h   pointers and shared arrays that tell core.cpp of every access
    cuda.h     the words of CUDA C++
    entry.h    what Python calls
    report.h   what a run leaves behind

    source.py  the learner's text as C++: shared arrays and casts are written as memory.h has them
    run.py     compiles it, runs it, reads the report
    faults.py  what a mistake means, in words

tests/cuda_on_cpu has another one, for the kernels that megafuse ships: it runs them whole, with
memory as it is, and counts nothing.
"""
