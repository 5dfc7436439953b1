"""A Slurm cluster on the hosts of hosts.py: the controller on n1, four cores on each host; the
partition `high` takes machines from jobs in `low`, which are put back into the queue. It needs
slurm-wlm and munge."""

import os
import shutil
import signal
import subprocess

import hosts


def missing():
    for tool in ("munged", "slurmctld", "slurmd", "srun", "sbatch"):
        if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin"):
            return f"there is no {tool}"
    return ""


class Slurm:
    """A cluster on `on` (hosts.Hosts) from `with` until its end."""

    def __init__(self, on):
        self.on = on
        self.conf = on.path("slurm.conf")
        self.munge = None

    def __enter__(self):
        state, on = self.on.path("slurm"), self.on
        os.makedirs(f"{state}/state")
        os.chmod(on.state, 0o755)
        socket, key = on.path("munge.socket"), on.path("munge.key")
        with open(key, "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(key, 0o400)
        hosts.write(self.conf, f"""
ClusterName=classroom
SlurmctldHost=n1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={state}/controller.pid
SlurmdPidFile=/local/slurmd.pid
SlurmdSpoolDir=/local/spool
StateSaveLocation={state}/state
SlurmctldLogFile={state}/controller.log
SlurmdLogFile={state}/%h.log
SwitchType=switch/none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=10
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
DebugFlags=NO_CONF_HASH
NodeName=n[1-{hosts.COUNT}] CPUs=4 SocketsPerBoard=1 CoresPerSocket=4 RealMemory=2000
PartitionName=low Nodes=n[1-{hosts.COUNT}] Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=20
PartitionName=high Nodes=n[1-{hosts.COUNT}] MaxTime=INFINITE PriorityTier=10 PreemptMode=off
""")
        hosts.write(on.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/local/cg\n")
        self.munge = subprocess.Popen(
            ["munged", "--foreground", "--force", f"--socket={socket}", f"--key-file={key}",
             f"--pid-file={on.path('munge.pid')}", f"--log-file={on.path('munge.log')}",
             f"--seed-file={on.path('munge.seed')}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        on.wait_for(lambda: os.path.exists(socket))
        self.run(1, ["slurmctld"])
        for number in range(1, hosts.COUNT + 1):
            self.run(number, ["sh", "-c", "mkdir -p /local/spool && slurmd"])
        on.wait_for(lambda: self.run(1, ["sinfo", "-h", "-o", "%D %t", "-p", "low"]).stdout.strip()
                    == f"{hosts.COUNT} idle")
        return self

    def __exit__(self, *_):
        for pid in self.on.run(1, ["pgrep", "slurmctld"]).stdout.split():
            self.on.run(1, ["kill", "-9", pid])
        if self.munge:
            self.munge.send_signal(signal.SIGKILL)
            self.munge.wait()

    def run(self, number, command, **more):
        """hosts.Hosts.run() with the tools' configuration."""
        return self.on.run(number, [
            "env", f"SLURM_CONF={self.conf}", "PATH=" + os.environ["PATH"] + ":/usr/sbin",
            "SLURM_PMIX_TMPDIR=/local",  # the hosts share /tmp
            *command], **more)
