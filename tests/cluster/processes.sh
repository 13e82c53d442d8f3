# shellcheck shell=bash
# Starts and stops the components. To be sourced after groups.sh.

# pid NAME: the pid of a living component, or failure.
pid() {
  local pid
  pid=$(cat "$run/pids/$1" 2>/dev/null) || return 1
  in_group "$pid" "$1" || return 1
  [ "$(cut -d' ' -f3 <"/proc/$pid/stat" 2>/dev/null)" != Z ] || return 1
  echo "$pid"
}

# start NAME COMMAND…: with a clean environment, unless it already runs with the same command, binary and files.
start() {
  local name=$1 group descriptor word wanted
  group=$(group_of "$1")
  shift
  wanted="$* $(stat -c %Y "$1")"
  for word in "$@"; do
    [[ ${word#*=} != "$config"/* ]] || wanted+=" $(cksum <"${word#*=}")"
  done
  if pid "$name" >/dev/null; then
    [ "$(cat "$run/pids/$name.command" 2>/dev/null)" != "$wanted" ] || return 0
    say "restarting $name: its binary, flags or files have changed"
    stop "$name"
  fi
  mkdir -p "$group" "$run/pids" "$logs"
  echo "$wanted" >"$run/pids/$name.command"
  (
    # A component must not keep the caller's locks and pipes open.
    for descriptor in "/proc/$BASHPID/fd"/*; do
      descriptor=${descriptor##*/}
      [ "$descriptor" -le 2 ] || eval "exec $descriptor>&-"
    done
    echo "$BASHPID" >"$group/cgroup.procs"
    echo "$BASHPID" >"$run/pids/$name"
    exec setsid env -i HOME="$cluster" PATH="$tools:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
      "$@" </dev/null >>"$logs/$name.log" 2>&1
  ) &
}

# stop NAME [SIGNAL]: stops and waits; kills a component that takes more than 10 s.
stop() {
  local name=$1 signal=${2:-TERM} pid deadline=$((SECONDS + 10))
  pid=$(pid "$name") || return 0
  kill "-$signal" "$pid" 2>/dev/null || return 0
  while pid "$name" >/dev/null; do
    [ $SECONDS -lt $deadline ] || kill -KILL "$pid" 2>/dev/null || true
    sleep 0.05
  done
}

# every_pid: all processes of the cluster: components, shims and those in containers.
every_pid() {
  local tree
  tree=$(process_tree)/$cgroup
  [ ! -d "$tree" ] || find "$tree" -name cgroup.procs -exec cat {} + 2>/dev/null
}

# stop_everything: the kubelet first, so that it starts nothing again. The cluster's data goes too, so nothing needs a
# graceful stop. Repeats until no process is left, because one may just be starting.
stop_everything() {
  local pids deadline=$((SECONDS + 30))
  stop kubelet
  while pids=$(every_pid) && [ -n "$pids" ]; do
    [ $SECONDS -lt $deadline ] || fail "these processes do not exit: $pids"
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
    sleep 0.05
  done
}

# why NAME: the end of a component's log, for an error message.
why() {
  pid "$1" >/dev/null || echo "cluster: $1 has exited." >&2
  echo "cluster: the end of $logs/$1.log:" >&2
  tail -n 15 "$logs/$1.log" >&2
}
