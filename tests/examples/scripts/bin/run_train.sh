#!/bin/sh
# Starts torchtitan as its own script does.
exec torchrun --nproc_per_node="$NGPU" -m torchtitan.train --module "$MODULE" --config "$CONFIG" "$@"
