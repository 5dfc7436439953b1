"""Several hosts on one machine, for tests: each has network, UTS, IPC, PID and mount namespaces of
its own, a name, an sshd, a /dev/shm, a /local and a boot id (MPI libraries recognize a machine by
it). All share the other files. Veth pairs and a bridge join them:

      n1            n2            n3            n4
     eth0          eth0          eth0          eth0      10.77.0.1 to 10.77.0.4
       |             |             |             |
      usc1          usc2          usc3          usc4     a cable: cut() and slow_down() act on it
       '-------------+---- uscbr ---+-------------'

It needs root, iproute2 and OpenSSH; missing() says what is not there."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

COUNT = 4
BRIDGE = "uscbr"
SSHD = "/usr/sbin/sshd"


def missing():
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "only root may create hosts"
    for tool in ("ip", "tc", "ssh", "ssh-keygen", "unshare", "nsenter", SSHD):
        if not shutil.which(tool):
            return f"there is no {tool}"
    works = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork",
                            "true"], capture_output=True, check=False)
    return "" if works.returncode == 0 else "this machine allows no namespaces"


def quiet(*command):
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def write(path, text, mode=0o644):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


class Hosts:
    """All hosts, n1 to n4, from `with` until its end."""

    def __enter__(self):
        self.state = tempfile.mkdtemp(prefix="usc-hosts-")
        self.processes = {}
        self.remove_links()  # an earlier test may have been killed
        self.write_ssh_files()
        try:
            subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
            subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
            for number in range(1, COUNT + 1):
                self.start(number)
            for number in range(1, COUNT + 1):
                self.wait_for(lambda n=number: self.run(n, ["true"]).returncode == 0)
            for number in range(1, COUNT + 1):
                self.wait_for(lambda n=number: self.run(
                    1, ["ssh", "-o", "ConnectTimeout=1", f"n{n}", "true"]).returncode == 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            inside = self.first_process(process)
            if inside:  # the first process of a PID namespace takes all others with it
                os.kill(inside, signal.SIGKILL)
            process.kill()
            process.wait()
        self.remove_links()
        shutil.rmtree(self.state, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.state, name)

    def remove_links(self):
        for number in range(1, COUNT + 1):
            quiet("ip", "link", "del", f"usc{number}")
            quiet("ip", "netns", "del", f"usc-n{number}")
        quiet("ip", "link", "del", BRIDGE)

    def write_ssh_files(self):
        os.makedirs(self.path("ssh"), mode=0o700)
        for key in ("hostkey", "ssh/id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(key)],
                           check=True)
        shutil.copy(self.path("ssh/id_ed25519.pub"), self.path("ssh/authorized_keys"))
        write(self.path("ssh/config"),
              "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
              "  LogLevel ERROR\n", 0o600)
        write(self.path("sshd_config"),
              f"Port 22\nHostKey {self.path('hostkey')}\nPermitRootLogin yes\n"
              "AuthorizedKeysFile /root/.ssh/authorized_keys\nUsePAM no\nStrictModes no\n"
              "PidFile none\n")
        write(self.path("hosts"), "127.0.0.1 localhost\n" + "".join(
            f"10.77.0.{number} n{number}\n" for number in range(1, COUNT + 1)))

    def start(self, number):
        space, cable = f"usc-n{number}", f"usc{number}"
        for command in (f"netns add {space}",
                        f"link add {cable} type veth peer name eth0 netns {space}",
                        f"link set {cable} master {BRIDGE} up",
                        f"-n {space} addr add 10.77.0.{number}/24 dev eth0",
                        f"-n {space} link set eth0 up", f"-n {space} link set lo up"):
            subprocess.run(["ip", *command.split()], check=True)
        write(self.path(f"boot_id{number}"), f"{uuid.uuid4()}\n")
        script = f"""
            hostname n{number}
            mount -t tmpfs tmpfs /dev/shm
            mkdir -p /local && mount -t tmpfs -o size=1g tmpfs /local
            mkdir -p /run/sshd /root/.ssh
            mount --bind {self.path("hosts")} /etc/hosts
            mount --bind {self.path("ssh")} /root/.ssh
            mount --bind {self.path(f"boot_id{number}")} /proc/sys/kernel/random/boot_id
            exec {SSHD} -D -f {self.path("sshd_config")}"""
        with open(self.path(f"log{number}"), "w", encoding="utf-8") as log:
            self.processes[number] = subprocess.Popen(
                ["ip", "netns", "exec", space, "unshare", "--uts", "--ipc", "--mount", "--pid",
                 "--fork", "--mount-proc", "--propagation", "private", "sh", "-ec", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @staticmethod
    def first_process(process):
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True,
                               check=False).stdout.split()
        return int(found[0]) if found else 0

    def wait_for(self, condition, seconds=60):
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {seconds} s for a host")
            time.sleep(0.05)

    def inside(self, number):
        """The words before a command that make it run on a host."""
        return ["nsenter", "-t", str(self.first_process(self.processes[number])), "-n", "-u", "-i",
                "-m", "-p", "--"]

    def run(self, number, command, seconds=60, **more):
        """Runs a command on host n<number>; its outputs come back as text."""
        return subprocess.run(self.inside(number) + command, capture_output=True, text=True,
                              timeout=seconds, check=False, **more)

    def popen(self, number, command, **more):
        return subprocess.Popen(self.inside(number) + command, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **more)

    def cut(self, number):
        subprocess.run(["ip", "link", "set", f"usc{number}", "down"], check=True)

    def mend(self, number):
        subprocess.run(["ip", "link", "set", f"usc{number}", "up"], check=True)

    def slow_down(self, number, mbit):
        """A host's cable carries so many Mbit/s towards it; 0: as fast as it can."""
        cable = f"usc{number}"
        quiet("tc", "qdisc", "del", "dev", cable, "root")
        if mbit:
            subprocess.run(["tc", "qdisc", "add", "dev", cable, "root", "tbf", "rate",
                            f"{mbit}mbit", "burst", "32kbit", "latency", "50ms"], check=True)
