// Stands in for CUDA's header of the same name: vectors.hpp has what it would bring.
#pragma once
