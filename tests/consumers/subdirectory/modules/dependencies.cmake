# Not for flashjit, which has a file of this name.
message(FATAL_ERROR "flashjit included a module of the project around it")
