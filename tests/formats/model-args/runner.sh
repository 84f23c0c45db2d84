#!/usr/bin/env bash
# What Megatron-LM's tests/functional_tests/shell_test_utils/_run_training.sh makes of MODEL_ARGS, without yq.
# Usage: runner.sh RULES, one of: split (core_v0.12), quotes (core_v0.13 to core_v0.16), layouts (from core_v0.17).
# Standard input: for each option a line `--name: value`. Standard output: the words, each ended by a NUL.
set -euo pipefail

rules=$1
line_of_words=
while IFS= read -r line; do
    name=${line%%:*}
    value=${line#*: }
    if [[ $rules == split ]]; then
        [[ $value == true ]] && value=
        line_of_words+="$name $value "
        continue
    fi
    value=$(xargs <<<"$value")
    if [[ $value == true ]]; then
        line_of_words+="$name "
    elif [[ $value =~ ^\([^\)]+\)$ ]]; then
        line_of_words+="$name \"$value\" "
    elif [[ $value =~ ^\[[^]]+\]$ ]]; then
        line_of_words+="$name ${value:1:-1} "
    elif [[ $value == *" "* || ($rules == layouts && $value == *[\|\(\)]*) ]]; then
        line_of_words+="$name \"$value\" "
    else
        line_of_words+="$name $value "
    fi
done

if [[ $rules == split ]]; then
    # shellcheck disable=SC2086
    printf '%s\0' $line_of_words
else
    eval "words=($line_of_words)"
    # shellcheck disable=SC2154
    printf '%s\0' "${words[@]}"
fi
