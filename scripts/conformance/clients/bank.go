// Transfers between the topics of a bank, each a transaction. Usage: bank SERVERS ID FILE
// FILE has a transfer in each line: topic, key and value of three records, separated by tabs.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

var attempts = 0

func run(servers []string, id string, transfers []string) error {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.MaxOpenRequests = 1
	config.Net.ReadTimeout = 10 * time.Second
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = id
	producer, err := sarama.NewSyncProducer(servers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	admin, err := sarama.NewClusterAdmin(servers, config)
	if err != nil {
		return err
	}
	defer admin.Close()
	committed, err := admin.ListConsumerGroupOffsets(id, map[string][]int32{"numbers": {0}})
	if err != nil {
		return err
	}
	block := committed.GetBlock("numbers", 0)
	if block == nil || block.Err != sarama.ErrNoError {
		return fmt.Errorf("no committed offset is told: %v", committed.Err)
	}
	for number := max(0, int(block.Offset)); number < len(transfers); {
		attempts++
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		fields := strings.Split(transfers[number], "\t")
		for leg := 0; leg < len(fields); leg += 3 {
			message := &sarama.ProducerMessage{
				Topic: fields[leg], Key: sarama.StringEncoder(fields[leg+1]), Value: sarama.StringEncoder(fields[leg+2]),
			}
			if _, _, err := producer.SendMessage(message); err != nil {
				return err
			}
		}
		offsets := []*sarama.PartitionOffsetMetadata{{Partition: 0, Offset: int64(number + 1), LeaderEpoch: -1}}
		if err := producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{"numbers": offsets}, id); err != nil {
			return err
		}
		if attempts%4 == 0 {
			if err := producer.AbortTxn(); err != nil {
				return err
			}
			continue
		}
		if err := producer.CommitTxn(); err != nil {
			return err
		}
		fmt.Println("done", number)
		number++
	}
	return nil
}

func main() {
	content, err := os.ReadFile(os.Args[3])
	if err != nil {
		panic(err)
	}
	transfers := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	for {
		err := run(strings.Split(os.Args[1], ","), os.Args[2], transfers)
		if err == nil {
			return
		}
		fmt.Fprintln(os.Stderr, err) // it was committed or not: the group's offset tells
		time.Sleep(100 * time.Millisecond)
	}
}
