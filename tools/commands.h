/* commands: the subcommands of kvtier. argv[0] is "kvtier NAME"; the result is the exit status (enum kvt_exit). */
#ifndef KVT_TOOLS_COMMANDS_H
#define KVT_TOOLS_COMMANDS_H

int kvt_cmd_bench(int argc, char **argv);
int kvt_cmd_doctor(int argc, char **argv);
int kvt_cmd_plan(int argc, char **argv);
int kvt_cmd_run(int argc, char **argv);
int kvt_cmd_sim(int argc, char **argv);
int kvt_cmd_store(int argc, char **argv);
int kvt_cmd_top(int argc, char **argv);

#endif
