# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_tombolo_global_optspecs
    string join \n state= format= h/help V/version
end

function __fish_tombolo_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_tombolo_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_tombolo_using_subcommand
    set -l cmd (__fish_tombolo_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c tombolo -n "__fish_tombolo_needs_command" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_needs_command" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_needs_command" -s V -l version -d 'Print version'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "run" -d 'Run a whole federation on this machine'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "node" -d 'Run one node of a federation; the others run elsewhere'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "sim" -d 'Run a federation in virtual time, from a seed, with the same code'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "check" -d 'Check a topology: every mistake at once'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "checkpoint" -d 'List, verify and copy out what was committed'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "audit" -d 'Show, verify and prove what the record says that every domain keeps'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "doctor" -d 'Look for what would keep nodes from running here, and say what mends it'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "preflight" -d 'Measure the links of a topology before anything trains, and say what is wrong with them'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "status" -d 'Show what runs in a state folder'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "top" -d 'Show a run as it goes, in this terminal'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "explain" -d 'Tell why a round, a node or a link went as it did'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "report" -d 'Write a finished run as one page, in a file that needs nothing else'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "trace" -d 'Write what happened in each round, at every site and on one clock, as a Chrome trace, which Perfetto shows'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "promote" -d 'Make a standby the coordinator, after the one before it was lost'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "stop" -d 'End a run: behind the open round, or now. What is committed is kept'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "pause" -d 'Let the open round end, and open no other until `resume`'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "resume" -d 'Open rounds again in a run that was paused'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "amend" -d 'Let a run go on by its topology as the file says it now: what it adds joins at the next epoch, once every node has that file'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "readmit" -d 'Let an evicted node in again before its cool-down is over'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "certs" -d 'Make, issue and show certificates'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "policy" -d 'Show who may do what at which site, and why'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "bench" -d 'Measure what this machine does, beside its limits'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "schema" -d 'Print the JSON schema of the topology, for editors'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "new" -d 'Make a folder with a small topology that runs'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "manual" -d 'Write man pages, completions and the table of exit codes'
complete -c tombolo -n "__fish_tombolo_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -l dashboard -d 'Serve a page that shows the run as it goes, its metrics and its events, at this loopback address, 127.0.0.1:0 for a free port; whoever wants to see it needs the token of the address that is printed' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -l trace -d 'Write what happened in each round, and when, to this file when the run is over: a Chrome trace, which Perfetto shows' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -l resume -d 'Go on from the last committed round of the state folder'
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -l processes -d 'Run each node as an operating-system process of its own'
complete -c tombolo -n "__fish_tombolo_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l name -d 'Which node this is, as `domain/name`' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l dashboard -d 'Serve a page that shows the run as it goes, its metrics and its events, at this loopback address, 127.0.0.1:0 for a free port; whoever wants to see it needs the token of the address that is printed' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l trace -d 'Write what happened in each round, and when, to this file when the run is over: a Chrome trace, which Perfetto shows' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l child-of -d 'Set by `run --processes`: the process that this one must not outlive and that wants every event' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -l resume -d 'Go on from the last committed round of the state folder'
complete -c tombolo -n "__fish_tombolo_using_subcommand node" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l seed -d 'Seeds the simulated world; the topology\'s seed if it is not given' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l faults -d 'What goes wrong: a file with a list of [[fault]], or `random` for faults of every kind in the first virtual minute, drawn from the seed' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l faults-per-minute -d 'With `--faults random`: how many begin in that minute' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l training -d 'How long a node\'s training takes in virtual time, give or take a fifth, such as 2s' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l faults-out -d 'Write what goes wrong to this file, as `--faults` reads it; with `--shrink`, the smallest part of it that still fails' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l dashboard -d 'Serve a page that shows the run as it goes, its metrics and its events, at this loopback address, 127.0.0.1:0 for a free port; whoever wants to see it needs the token of the address that is printed' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l trace -d 'Write what happened in each round, and when, to this file when the run is over: a Chrome trace, which Perfetto shows' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l shrink -d 'If the simulation fails, run it again with less and less going wrong, and show the smallest part that still fails'
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -l twice -d 'Run it twice and compare: the same seed must take the same course'
complete -c tombolo -n "__fish_tombolo_using_subcommand sim" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand check" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand check" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand check" -l partition -d 'Also show which node trains on how many rows of which kind'
complete -c tombolo -n "__fish_tombolo_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -f -a "list" -d 'Show every round: its model\'s hash, accuracy and size, and whether its files are what they were'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -f -a "verify" -d 'Read every file back; fails if one is not what it was, and names it'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -f -a "restore" -d 'Copy the model of a round out, as a safetensors file'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and not __fish_seen_subcommand_from list verify restore help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from list" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from list" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from verify" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from verify" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from restore" -l round -d 'Of which round; default: the newest whose files are what they were' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from restore" -l to -d 'The file to write, or a folder to write `model.safetensors` into' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from restore" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from restore" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from restore" -l overwrite -d 'Replace the file if there is one'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from restore" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show every round: its model\'s hash, accuracy and size, and whether its files are what they were'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "verify" -d 'Read every file back; fails if one is not what it was, and names it'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "restore" -d 'Copy the model of a round out, as a safetensors file'
complete -c tombolo -n "__fish_tombolo_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -f -a "show" -d 'Show what the record says, leaf by leaf'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -f -a "verify" -d 'Verify every leaf, root and signature of one or several sites\' copies, and that they are one record; names what is not'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -f -a "prove" -d 'Prove that the record says something, to whoever holds only its checkpoint'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -f -a "recompute" -d 'Compute the models of rounds again from what the sites\' gateways have retained, and compare them with the record'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and not __fish_seen_subcommand_from show verify prove recompute help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from show" -l round -d 'Only what is about that round' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from show" -l node -d 'Only what names that node, as `domain/name`' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from show" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from show" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from verify" -l topology -d 'The topology whose pinned roots count; without it the record\'s own, whose fingerprints are shown' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from verify" -l proof -d 'Verify one leaf by its proof instead' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from verify" -l checkpoint -d 'The checkpoint that the proof is for' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from verify" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from verify" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from prove" -l round -d 'Of which round' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from prove" -l node -d 'What its update weighed; without it how the round ended' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from prove" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from prove" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from prove" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from recompute" -l topology -d 'The topology of the run: its rule and its outer optimizer, and where the coordinator\'s states lie' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from recompute" -l round -d 'That round alone' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from recompute" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from recompute" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from recompute" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show what the record says, leaf by leaf'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from help" -f -a "verify" -d 'Verify every leaf, root and signature of one or several sites\' copies, and that they are one record; names what is not'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from help" -f -a "prove" -d 'Prove that the record says something, to whoever holds only its checkpoint'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from help" -f -a "recompute" -d 'Compute the models of rounds again from what the sites\' gateways have retained, and compare them with the record'
complete -c tombolo -n "__fish_tombolo_using_subcommand audit; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand doctor" -l name -d 'The nodes that are to run here, as `domain/name`; default: those whose certificates are here' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand doctor" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand doctor" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand preflight" -l name -d 'The node of this machine, as `domain/name`, or several: run this on each machine at about the same time; without it all nodes are here, and paths are emulated as the file says' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand preflight" -l wait -d 'How long peers are waited for, in seconds' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand preflight" -l model-bytes -d 'Bytes of the model, as `f32`; default: those of the built-in trainer' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand preflight" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand preflight" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand preflight" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand status" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand status" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand top" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand top" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand top" -l once -d 'Print how it stands, once'
complete -c tombolo -n "__fish_tombolo_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -f -a "round" -d 'What a round spent its time on, who is not in it and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -f -a "node" -d 'How a node\'s rounds went, what it is weighed and what happened to it'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -f -a "link" -d 'What two nodes saw of each other'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and not __fish_seen_subcommand_from round node link help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from round" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from round" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from round" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from node" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from node" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from node" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from link" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from link" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from link" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "round" -d 'What a round spent its time on, who is not in it and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "node" -d 'How a node\'s rounds went, what it is weighed and what happened to it'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "link" -d 'What two nodes saw of each other'
complete -c tombolo -n "__fish_tombolo_using_subcommand explain; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand report" -l out -d 'Where to write; default: report.html in the first folder, or with --tensorboard the folder tensorboard in it' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand report" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand report" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand report" -l tensorboard -d 'Write loss, accuracy, norm, bytes and time of each round for TensorBoard instead: an event file in a folder for `tensorboard --logdir`'
complete -c tombolo -n "__fish_tombolo_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand trace" -l out -d 'Where to write; default: trace.json in the first folder' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand trace" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand trace" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand promote" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand promote" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand promote" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand stop" -l by -d 'Who asks, for status and the record; default: the name of the user' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand stop" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand stop" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand stop" -l now -d 'Give the open round up; `--resume` runs it again'
complete -c tombolo -n "__fish_tombolo_using_subcommand stop" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand pause" -l by -d 'Who asks, for status and the record; default: the name of the user' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand pause" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand pause" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand pause" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand resume" -l by -d 'Who asks, for status and the record; default: the name of the user' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand resume" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand resume" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand resume" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand amend" -l by -d 'Who asks, for status and the record; default: the name of the user' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand amend" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand amend" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand amend" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand readmit" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand readmit" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand readmit" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "init" -d 'Make a domain\'s authority: its root certificate and the root\'s key'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "issue" -d 'Issue a node\'s certificate and key from its domain\'s authority'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "request" -d 'Make a node\'s key where the node runs, and ask for a certificate of it'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "approve" -d 'Sign a request, where the domain\'s key is'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "rotate" -d 'Give nodes new keys and certificates, or a node one that was approved. Nodes that run take it up by themselves'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "revoke" -d 'Call a node\'s certificates back: whoever hears of it cuts the node off'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "rollover" -d 'Put a new root in the place of a domain\'s old one, step by step'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "show" -d 'Show the topology\'s certificates that are on this machine, and what is wrong with them'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and not __fish_seen_subcommand_from init issue request approve rotate revoke rollover show help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from init" -l domain -d 'Which domain; default: every domain that has no root yet' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from init" -l days -d 'How many days the root lives' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from init" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from init" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from init" -l replace -d 'Replace what is there; every certificate issued so far is then worthless'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from issue" -l node -d 'Which node, as `domain/name`; default: every node that has no certificate yet, of the domains whose keys are here' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from issue" -l days -d 'How many days the certificate lives' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from issue" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from issue" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from issue" -l replace -d 'Replace what is there, with a new key'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from issue" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from request" -l node -d 'Which node, as `domain/name`' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from request" -l out -d 'Where the request is written; default: beside the node\'s certificate, as `<name>.csr`' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from request" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from request" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from request" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -l request -d 'The request' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -l fingerprint -d 'The key\'s fingerprint, as the node\'s side has told it over another channel; without it you are asked, on a terminal' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -l days -d 'How many days the certificate lives' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -l out -d 'Where the certificate is written; default: beside the request, as `.pem`' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from approve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rotate" -l node -d 'Which node, as `domain/name`; default: every node whose certificate is here, of the domains whose keys are here' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rotate" -l certificate -d 'A certificate that was approved for a key of this node; default: a new key and a certificate for it' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rotate" -l days -d 'How many days the certificate lives' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rotate" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rotate" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rotate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l node -d 'Whose certificates, as `domain/name`' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rollover" -l domain -d 'Which domain' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rollover" -l step -d 'Which step' -r -f -a "next\t'Add a root; it signs nothing yet'
switch\t'Sign with it from now on'
retire\t'Take the old one away'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rollover" -l days -d 'How many days the new root lives' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rollover" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rollover" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from rollover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from show" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from show" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "init" -d 'Make a domain\'s authority: its root certificate and the root\'s key'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "issue" -d 'Issue a node\'s certificate and key from its domain\'s authority'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "request" -d 'Make a node\'s key where the node runs, and ask for a certificate of it'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "approve" -d 'Sign a request, where the domain\'s key is'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "rotate" -d 'Give nodes new keys and certificates, or a node one that was approved. Nodes that run take it up by themselves'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Call a node\'s certificates back: whoever hears of it cuts the node off'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "rollover" -d 'Put a new root in the place of a domain\'s old one, step by step'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show the topology\'s certificates that are on this machine, and what is wrong with them'
complete -c tombolo -n "__fish_tombolo_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and not __fish_seen_subcommand_from explain help" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and not __fish_seen_subcommand_from explain help" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and not __fish_seen_subcommand_from explain help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and not __fish_seen_subcommand_from explain help" -f -a "explain" -d 'Who may do what at which site, by which rule and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and not __fish_seen_subcommand_from explain help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -l site -d 'Only at this site' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -l identity -d 'Only for this identity: `domain/name`, or a SPIFFE ID. It may be one that the topology does not have' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -l action -d 'Only this: join, train, aggregate, coordinate, read-model or read-metrics' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -l slice -d 'Only for acts that concern nodes of this slice; `-` for nodes of none' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from help" -f -a "explain" -d 'Who may do what at which site, by which rule and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand policy; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "round" -d 'Rounds of a federation that does no training, over loopback QUIC and TLS'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "allreduce" -d 'Collectives of step mode among processes of this machine, beside plain loops over one memory'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "train" -d 'A federation that trains: samples a second beside plain loops, and where the time of a round goes'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "codec" -d 'Codecs of contributions: encoding, decoding, error feedback'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "compress" -d 'Lossless methods on updates as they are, in half precision and sparse: ratio and speed'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "link" -d 'One large object over loopback QUIC, beside TCP with TLS and plain TCP'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "congestion" -d 'What congestion laws make of simulated paths, in virtual time: how full, how long the queue, how fair'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "clock" -d 'What a node knows of a peer\'s clock, beside the truth, and what that costs'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "fabric" -d 'A small message and a buffer from process to process: over shared memory, sockets and QUIC'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "copy" -d 'A file into a socket, by every way that the system has; and queues from thread to thread'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "pool" -d 'Fresh memory for tensors beside memory that was used before, and how much of it rounds need'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "handshake" -d 'How two nodes come to trust each other: time, processor time and bytes of a handshake, beside TCP with TLS'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "mailbox" -d 'What it costs to tell an actor something and to ask it, beside actix alone and a bare channel'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "learn" -d 'What rules, codecs and retries do for a model: a study in virtual time'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and not __fish_seen_subcommand_from round allreduce train codec compress link congestion clock fabric copy pool handshake mailbox learn help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l nodes -d 'Nodes that contribute, each a domain of its own' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l elements -d 'Numbers in the model, of four bytes each' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l rounds -d 'Rounds that are measured; one before them is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l part -d 'Set by the measuring process: which part of the federation this one is' -r -f -a "coordinator\t''
members\t''"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l child-of -d 'Set by the measuring process, which this one must not outlive' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from round" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l nodes -d 'Processes that take part' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l elements -d 'Numbers that each has' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l dtype -d 'Their type: f32, f16, bf16, f64, i32 or i64' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l per -d 'Operations in a batch, whose time is divided by as many' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l batches -d 'Batches that are measured' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l shape -d 'How it goes: direct, ring, tree, halving or mesh; without it, the one that suits' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l rank -d 'Set by the first rank: who this one is. Its invitation comes on standard input' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l child-of -d 'Set by the first rank, whom this one does not outlive: the group fails then' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -l private -d 'Numbers in memory of each process alone, instead of memory that all of them reach'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from allreduce" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l domains -d 'Domains of the federation' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l nodes -d 'Nodes of each domain' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l rounds -d 'Rounds that are measured; one before them is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l epochs -d 'How often a node goes through its rows in a round' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l hidden -d 'Hidden units of the network' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l case -d 'Set by the measuring process: which case this one measures; the one behind the last is prefetching' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l child-of -d 'Set by the measuring process, which this one must not outlive' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from train" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from codec" -l elements -d 'Numbers to encode, of four bytes each' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from codec" -l repeat -d 'How often each operation is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from codec" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from codec" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from codec" -l portable -d 'Any processor\'s instructions instead of the widest that this one has'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from codec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from compress" -l elements -d 'Numbers of the update, of four bytes each' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from compress" -l repeat -d 'How often each operation is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from compress" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from compress" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from compress" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from link" -l bytes -d 'Bytes of the object' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from link" -l repeat -d 'How often each transfer is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from link" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from link" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from link" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from congestion" -l cells -d 'Over which paths one object is moved' -r -f -a "ci\t'Six paths, and less than 100 MB where that takes long'
all\t'20, 60, 150 and 300 ms, 0, 0.1 and 1 % loss, 5, 50 and 200 Mbit/s: 100 MB over each'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from congestion" -l only -d 'Only paths whose names have this in them, and nothing of several flows' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from congestion" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from congestion" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from congestion" -l gigabit -d 'Over paths of 1 Gbit/s as well'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from congestion" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from clock" -l seconds -d 'How long heartbeats are exchanged' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from clock" -l every-ms -d 'Milliseconds from heartbeat to heartbeat; nodes have 500 by default' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from clock" -l child-of -d 'Set by the measuring process, with which this one, the other node, ends: its input is closed then' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from clock" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from clock" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from clock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -l bytes -d 'Bytes of the buffer' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -l messages -d 'Small messages of each kind' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -l repeat -d 'How often a buffer is handed over' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -l child-of -d 'Set by the process that sends, with which this one, which takes, ends. What it must know comes on standard input' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from fabric" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from copy" -l bytes -d 'Bytes of the file' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from copy" -l items -d 'Numbers that pass through a queue' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from copy" -l repeat -d 'How often each is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from copy" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from copy" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from copy" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from pool" -l elements -d 'Numbers of the largest tensor, and of the model' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from pool" -l repeat -d 'How often each is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from pool" -l rounds -d 'Rounds in a steady state' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from pool" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from pool" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from pool" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from handshake" -l repeat -d 'How often each handshake is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from handshake" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from handshake" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from handshake" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from mailbox" -l tells -d 'Tells of one operation; questions are a tenth, requests a hundredth of that' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from mailbox" -l repeat -d 'How often each operation is measured; once before that it is not' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from mailbox" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from mailbox" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from mailbox" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from learn" -l seeds -d 'Seeds of each run: 1 to this number' -r
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from learn" -l out -d 'Folder for tables, plots and a line for each run' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from learn" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from learn" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from learn" -l short -d 'Only what must hold after every change: the default and a plain mean under updates that are too long or no numbers'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from learn" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "round" -d 'Rounds of a federation that does no training, over loopback QUIC and TLS'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "allreduce" -d 'Collectives of step mode among processes of this machine, beside plain loops over one memory'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "train" -d 'A federation that trains: samples a second beside plain loops, and where the time of a round goes'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "codec" -d 'Codecs of contributions: encoding, decoding, error feedback'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "compress" -d 'Lossless methods on updates as they are, in half precision and sparse: ratio and speed'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "link" -d 'One large object over loopback QUIC, beside TCP with TLS and plain TCP'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "congestion" -d 'What congestion laws make of simulated paths, in virtual time: how full, how long the queue, how fair'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "clock" -d 'What a node knows of a peer\'s clock, beside the truth, and what that costs'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "fabric" -d 'A small message and a buffer from process to process: over shared memory, sockets and QUIC'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "copy" -d 'A file into a socket, by every way that the system has; and queues from thread to thread'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "pool" -d 'Fresh memory for tensors beside memory that was used before, and how much of it rounds need'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "handshake" -d 'How two nodes come to trust each other: time, processor time and bytes of a handshake, beside TCP with TLS'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "mailbox" -d 'What it costs to tell an actor something and to ask it, beside actix alone and a bare channel'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "learn" -d 'What rules, codecs and retries do for a model: a study in virtual time'
complete -c tombolo -n "__fish_tombolo_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand schema" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand schema" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand schema" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand new" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand new" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand new" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand manual" -l state -d 'Keep state in this folder instead of the topology\'s' -r -F
complete -c tombolo -n "__fish_tombolo_using_subcommand manual" -l format -d 'How to print results: for people, or one JSON object a line' -r -f -a "text\t'For people'
json\t'One JSON object a line'"
complete -c tombolo -n "__fish_tombolo_using_subcommand manual" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "run" -d 'Run a whole federation on this machine'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "node" -d 'Run one node of a federation; the others run elsewhere'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "sim" -d 'Run a federation in virtual time, from a seed, with the same code'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "check" -d 'Check a topology: every mistake at once'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "checkpoint" -d 'List, verify and copy out what was committed'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "audit" -d 'Show, verify and prove what the record says that every domain keeps'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "doctor" -d 'Look for what would keep nodes from running here, and say what mends it'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "preflight" -d 'Measure the links of a topology before anything trains, and say what is wrong with them'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "status" -d 'Show what runs in a state folder'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "top" -d 'Show a run as it goes, in this terminal'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "explain" -d 'Tell why a round, a node or a link went as it did'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "report" -d 'Write a finished run as one page, in a file that needs nothing else'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "trace" -d 'Write what happened in each round, at every site and on one clock, as a Chrome trace, which Perfetto shows'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "promote" -d 'Make a standby the coordinator, after the one before it was lost'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "stop" -d 'End a run: behind the open round, or now. What is committed is kept'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "pause" -d 'Let the open round end, and open no other until `resume`'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "resume" -d 'Open rounds again in a run that was paused'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "amend" -d 'Let a run go on by its topology as the file says it now: what it adds joins at the next epoch, once every node has that file'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "readmit" -d 'Let an evicted node in again before its cool-down is over'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "certs" -d 'Make, issue and show certificates'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "policy" -d 'Show who may do what at which site, and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "bench" -d 'Measure what this machine does, beside its limits'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "schema" -d 'Print the JSON schema of the topology, for editors'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "new" -d 'Make a folder with a small topology that runs'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "manual" -d 'Write man pages, completions and the table of exit codes'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and not __fish_seen_subcommand_from run node sim check checkpoint audit doctor preflight status top explain report trace promote stop pause resume amend readmit certs policy bench schema new manual help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "list" -d 'Show every round: its model\'s hash, accuracy and size, and whether its files are what they were'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "verify" -d 'Read every file back; fails if one is not what it was, and names it'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "restore" -d 'Copy the model of a round out, as a safetensors file'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from audit" -f -a "show" -d 'Show what the record says, leaf by leaf'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from audit" -f -a "verify" -d 'Verify every leaf, root and signature of one or several sites\' copies, and that they are one record; names what is not'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from audit" -f -a "prove" -d 'Prove that the record says something, to whoever holds only its checkpoint'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from audit" -f -a "recompute" -d 'Compute the models of rounds again from what the sites\' gateways have retained, and compare them with the record'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from explain" -f -a "round" -d 'What a round spent its time on, who is not in it and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from explain" -f -a "node" -d 'How a node\'s rounds went, what it is weighed and what happened to it'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from explain" -f -a "link" -d 'What two nodes saw of each other'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "init" -d 'Make a domain\'s authority: its root certificate and the root\'s key'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "issue" -d 'Issue a node\'s certificate and key from its domain\'s authority'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "request" -d 'Make a node\'s key where the node runs, and ask for a certificate of it'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "approve" -d 'Sign a request, where the domain\'s key is'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "rotate" -d 'Give nodes new keys and certificates, or a node one that was approved. Nodes that run take it up by themselves'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "revoke" -d 'Call a node\'s certificates back: whoever hears of it cuts the node off'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "rollover" -d 'Put a new root in the place of a domain\'s old one, step by step'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "show" -d 'Show the topology\'s certificates that are on this machine, and what is wrong with them'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from policy" -f -a "explain" -d 'Who may do what at which site, by which rule and why'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "round" -d 'Rounds of a federation that does no training, over loopback QUIC and TLS'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "allreduce" -d 'Collectives of step mode among processes of this machine, beside plain loops over one memory'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "train" -d 'A federation that trains: samples a second beside plain loops, and where the time of a round goes'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "codec" -d 'Codecs of contributions: encoding, decoding, error feedback'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "compress" -d 'Lossless methods on updates as they are, in half precision and sparse: ratio and speed'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "link" -d 'One large object over loopback QUIC, beside TCP with TLS and plain TCP'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "congestion" -d 'What congestion laws make of simulated paths, in virtual time: how full, how long the queue, how fair'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "clock" -d 'What a node knows of a peer\'s clock, beside the truth, and what that costs'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "fabric" -d 'A small message and a buffer from process to process: over shared memory, sockets and QUIC'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "copy" -d 'A file into a socket, by every way that the system has; and queues from thread to thread'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "pool" -d 'Fresh memory for tensors beside memory that was used before, and how much of it rounds need'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "handshake" -d 'How two nodes come to trust each other: time, processor time and bytes of a handshake, beside TCP with TLS'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "mailbox" -d 'What it costs to tell an actor something and to ask it, beside actix alone and a bare channel'
complete -c tombolo -n "__fish_tombolo_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "learn" -d 'What rules, codecs and retries do for a model: a study in virtual time'
