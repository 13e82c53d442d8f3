# shellcheck shell=bash
# The cluster's control groups, in version 2 (one hierarchy) or version 1 (a hierarchy for each controller). To be sourced
# after settings.sh.
#
# Each component runs in a group of its own. A pid counts only while its process is in that group, so a number that another
# process reuses is never mistaken for ours.

# The controllers that the kubelet needs, where the kernel has them.
controllers=(cpuset cpu io memory pids hugetlb)

version2() { [ -e $cgroups/cgroup.controllers ]; }

# groups_version: 2 or 1; fails if the machine has neither.
groups_version() {
  if version2; then
    echo 2
  elif [ -d $cgroups/cpuset ] && [ -d $cgroups/pids ]; then
    echo 1
  else
    return 1
  fi
}

# missing_controllers: those of version 2 that the cluster cannot do without, and that the machine lacks.
missing_controllers() {
  local controller
  version2 || return 0
  for controller in cpuset cpu memory pids; do
    grep -qw $controller $cgroups/cgroup.controllers || echo $controller
  done
}

# process_tree: the hierarchy in which the components' groups are.
process_tree() { if version2; then echo $cgroups; else echo $cgroups/pids; fi; }

group_of() { echo "$(process_tree)/$cgroup/system/$1"; }

# in_group PID NAME: whether the process is in the component's group.
in_group() {
  local hierarchy=:pids:
  ! version2 || hierarchy=^0::
  grep -q "$hierarchy/$cgroup/system/$2\$" "/proc/$1/cgroup" 2>/dev/null
}

# every_group: the cluster's group in every hierarchy that has it.
every_group() {
  local place
  for place in $cgroups/$cgroup "$cgroups"/*/$cgroup; do
    [ ! -d "$place" ] || echo "$place"
  done
}

# every_cpu: the CPUs that a container may have.
every_cpu() { if version2; then cat $cgroups/cpuset.cpus.effective; else cat $cgroups/cpuset/cpuset.effective_cpus; fi; }

# delegate GROUP: hands the controllers to the groups below it.
delegate() {
  local controller
  for controller in "${controllers[@]}"; do
    if grep -qw "$controller" "$1/cgroup.controllers" && ! grep -qw "$controller" "$1/cgroup.subtree_control"; then
      echo "+$controller" >"$1/cgroup.subtree_control" || return 1
    fi
  done
}

# leave_root: inside a container, the root of the hierarchy has processes, and a group other than the kernel's root cannot
# have both processes and controllers. The group `init` stays when the cluster goes.
leave_root() {
  local process
  mkdir -p $cgroups/init
  while read -r process; do
    # Threads of the kernel stay, and a process may have exited.
    echo "$process" >$cgroups/init/cgroup.procs 2>/dev/null || true
  done <$cgroups/cgroup.procs
}

# make_groups: the parent of all groups. In version 1, cpusets start with all CPUs and memory nodes.
make_groups() {
  local hierarchy
  if version2; then
    mkdir -p $cgroups/$cgroup
    # Only a group that is not the kernel's root has a type.
    [ ! -e $cgroups/cgroup.type ] || [ -z "$(cat $cgroups/cgroup.procs)" ] || leave_root
    delegate $cgroups
    delegate $cgroups/$cgroup
    return
  fi
  for hierarchy in "$cgroups"/*/; do
    [ -e "$hierarchy/cgroup.procs" ] || continue
    mkdir -p "$hierarchy/$cgroup"
  done
  cat $cgroups/cpuset/cpuset.cpus >$cgroups/cpuset/$cgroup/cpuset.cpus
  cat $cgroups/cpuset/cpuset.mems >$cgroups/cpuset/$cgroup/cpuset.mems
}

# remove_groups: deepest first; a group can stay busy for a moment after its last process has exited.
remove_groups() {
  local group tries
  for group in $(every_group); do
    for ((tries = 0; tries < 50; tries++)); do
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
}
