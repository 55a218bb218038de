#!/usr/bin/env bash
# Stands in for sacct, which needs a database, as far as submitit asks it: sacct -o JobID,State,NodeList -j ID ...
# The controller tells of every job that it has not yet forgotten.
set -euo pipefail
echo "JobID|State|NodeList"
while [ $# -gt 0 ]; do
    if [ "$1" = -j ]; then
        scontrol --oneliner show job "$2" 2>/dev/null | awk '{
            delete field
            for (i = 1; i <= NF; i++) {
                at = index($i, "=")
                field[substr($i, 1, at - 1)] = substr($i, at + 1)
            }
            id = "ArrayJobId" in field ? field["ArrayJobId"] "_" field["ArrayTaskId"] : field["JobId"]
            if (id ~ /_[0-9]+.*[-,]/) { sub(/_/, "_[", id); id = id "]" }
            print id "|" field["JobState"] "|" field["NodeList"]
        }' || true
        shift
    fi
    shift
done
