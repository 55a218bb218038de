#!/usr/bin/env bash
# SLURM on this machine alone, without systemd, as root: nodes whose GPUs may be pretended, for trying launcher=slurm
# and for its tests.
#   bash scripts/slurm.sh install                      Debian's packages, where they are missing
#   bash scripts/slurm.sh start FOLDER [GPUS [NODES]]  a cluster that keeps its files in FOLDER: one node, or several that
#                                                      are all this machine, with 2 GPUs each that do not exist
#   source FOLDER/environment.sh                       lets sbatch, squeue and clickexp in this shell use it
#   bash scripts/slurm.sh stop FOLDER                  ends its processes and its jobs, and no others
set -euo pipefail

fail() {
    echo "slurm.sh: $*" >&2
    exit 1
}

install() {
    if type slurmctld slurmd munged sbatch >/dev/null 2>&1; then return; fi # true only if all are there
    [ "$(id -u)" = 0 ] || fail "installing SLURM takes root"
    command -v apt-get >/dev/null || fail "installing SLURM takes apt-get; here, install slurmctld, slurmd, slurm-client and munge by hand"
    packages="slurmctld slurmd slurm-client munge"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get install -y --no-install-recommends $packages >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages >/dev/null; } ||
        fail "apt-get could not install $packages"
}

running() { # NAME: whether the process that the pid file names is alive
    [ -s "$folder/$1.pid" ] && kill -0 "$(cat "$folder/$1.pid")" 2>/dev/null
}

free_ports() { # NUMBER
    python3 - "$1" <<'PYTHON'
import socket
import sys

sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))
PYTHON
}

configure() { # GPUS NODES
    local host cpus memory ports gpu node
    host="$(hostname -s)"
    cpus="$(nproc)"
    memory="$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)"
    read -r -a ports <<<"$(free_ports $(($2 + 1)))"
    mkdir -p "$folder/state" "$folder/spool" "$folder/bin"
    for ((gpu = 0; gpu < $1; gpu++)); do
        [ -e "$folder/nvidia$gpu" ] || mknod "$folder/nvidia$gpu" c 1 3 # SLURM takes no ordinary files
    done
    cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=3600
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    for ((node = 1; node <= $2; node++)); do
        echo "NodeName=node$node NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[$node]}" \
            "CPUs=$((cpus > 2 * $1 ? cpus : 2 * $1)) RealMemory=$memory Gres=gpu:$1" >>"$folder/slurm.conf"
    done
    echo "Name=gpu File=$folder/nvidia[0-$(($1 - 1))]" >"$folder/gres.conf"
    cp "$(dirname "${BASH_SOURCE[0]}")/sacct.sh" "$folder/bin/sacct"
    chmod +x "$folder/bin/sacct"
    echo "export SLURM_CONF='$folder/slurm.conf' PATH='$folder/bin':\"\$PATH\"" >"$folder/environment.sh"
}

start() {
    local gpus="${2:-2}" nodes="${3:-1}" node tries
    mkdir -p "$1"
    folder="$(cd "$1" && pwd)"
    if running slurmctld && running slurmd-node1; then return; fi
    stop "$1"
    configure "$gpus" "$nodes"
    if [ ! -s "$folder/munge.key" ]; then
        (umask 077 && dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 2>/dev/null)
    fi
    munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" --num-threads=2 2>/dev/null ||
        fail "munged does not start: $(tail -n 1 "$folder/munged.log")"
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld -i
    for ((node = 1; node <= nodes; node++)); do slurmd -N "node$node"; done
    for ((tries = 0; tries < 120; tries++)); do
        if [ "$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -cE '^(idle|mixed|allocated)$')" = "$nodes" ]; then
            echo "SLURM runs with $nodes nodes of $gpus pretended GPUs; source $folder/environment.sh to use it"
            return
        fi
        sleep 0.25
    done
    tail -n 5 "$folder"/slurm*.log >&2
    stop "$1"
    fail "not all nodes came up within 30 seconds; see $folder/slurmctld.log and $folder/slurmd-node1.log"
}

stop() {
    [ -d "$1" ] || return 0
    folder="$(cd "$1" && pwd)"
    local name pid tries daemons file
    daemons=(slurmctld)
    for file in "$folder"/slurmd-*.pid; do
        [ -e "$file" ] && daemons+=("$(basename "$file" .pid)")
    done
    daemons+=(munged)
    if running slurmctld && running slurmd-node1; then
        SLURM_CONF="$folder/slurm.conf" scancel --signal=KILL --full --user=root 2>/dev/null || true
        SLURM_CONF="$folder/slurm.conf" scancel --user=root 2>/dev/null || true
    fi
    for name in "${daemons[@]}"; do
        if running "$name"; then kill "$(cat "$folder/$name.pid")" || true; fi
    done
    for name in "${daemons[@]}"; do
        pid="$(cat "$folder/$name.pid" 2>/dev/null)" || continue # a daemon that ends removes it
        for ((tries = 0; tries < 40; tries++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.25
        done
        kill -9 "$pid" 2>/dev/null || true
        rm -f "$folder/$name.pid"
    done
}

case "${1:-}" in
install) install ;;
start | stop)
    [ -n "${2:-}" ] || fail "name a folder: slurm.sh $1 FOLDER"
    "$1" "${@:2}"
    ;;
*) fail "first argument: install, start or stop" ;;
esac
