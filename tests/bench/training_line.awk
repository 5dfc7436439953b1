# Prints a chapter's report as one line that begins with `name`: speed, memory, communication. If
# the report has no speed, prints its last line instead.
/tokens\/s .*MFU/ { speed = $1 " tokens/s a device, MFU " $6 " %" }
/all, at the peak/ { peak = $(NF - 4) " " $(NF - 3) }
/^  (all-reduce|all-gather|reduce-scatter|all-to-all|send\/recv) / { ms += $(NF - 2); exposed += $(NF - 1) }
{ last = $0 }
END {
    if (speed == "") speed = last
    printf "  %-44s %s, peak %s, communication %.1f ms, %.1f exposed\n", name, speed, peak, ms, exposed
}
