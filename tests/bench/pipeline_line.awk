# Prints a report of 05_pipeline (--report full) as one line of pipeline.sh's table. If the run
# failed, prints its last line instead.
/MFU/ { mfu = $6 }
/^bubbles in a step/ { bubbles = 1 }
bubbles && /^  step  / { step = sprintf("%9.1f %9.1f", $(NF - 1), $(NF - 2)) }
bubbles && /^  the step's bubble, mean/ { bubble = sprintf("%8.1f %8.1f", $(NF - 1), $(NF - 2)) }
bubbles && /^  a rank's own bubble/ { own = sprintf("%8.1f %8.1f", $(NF - 1), $(NF - 2)) }
/^  all, at the peak/ { peaks = $(NF - 4) " " $(NF - 3) }  # of each rank, if there is no table
/^measured by rank/ { by_rank = 1; peaks = "" }
by_rank && /^  rank / { peaks = peaks (peaks == "" ? "" : ", ") $(NF - 1) " " $NF }
/^$/ { by_rank = 0 }
NF { last = $0 }
END {
    if (step == "") printf "  %-23s %s\n", name, last
    else printf "  %-23s %s %6.1f %s %s  %s\n", name, step, mfu, bubble, own, peaks
}
