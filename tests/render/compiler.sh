#!/usr/bin/env bash
# A C++ compiler for extensions that are built to be tried: nothing is optimised or kept for a debugger, which takes a
# processor less than half as long. The arithmetic is the same to what tests of tiny models hold.
words=()
for word; do
  case $word in -g | -O[0-3]) ;; *) words+=("$word") ;; esac
done
exec c++ "${words[@]}"
